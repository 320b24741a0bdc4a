//! A stand-in for the management library: GPU N has number 7 - N, 18 NVLinks to a far end out of sight of which the last is down, and two
//! chip-to-chip links.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

#[repr(C)]
pub struct Pci {
    legacy: [c_char; 16],
    numbers: [c_uint; 5],
    address: [c_char; 32],
}

#[repr(C)]
pub struct Field {
    id: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    status: c_uint,
    value: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    0
}

/// A handle is the GPU's number plus one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(text: *const c_char, device: *mut *mut c_void) -> c_uint {
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default();
    let Some(number) = text.get(6..7).and_then(|digit| digit.parse::<usize>().ok()) else { return 6 };
    unsafe { *device = std::ptr::without_provenance_mut(number + 1) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: *mut c_void, index: *mut c_uint) -> c_uint {
    unsafe { *index = 8 - device.addr() as c_uint };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkCapability(_: *mut c_void, _: c_uint, which: c_uint, able: *mut c_uint) -> c_uint {
    unsafe { *able = c_uint::from(which == 0) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(_: *mut c_void, _: c_uint, pci: *mut Pci) -> c_uint {
    for (to, from) in unsafe { &mut (*pci).address }.iter_mut().zip(b"FFFFFFFF:FFFF:FF.FF\0") {
        *to = *from as c_char;
    }
    0
}

/// Fields 165 NVLink state, 170 chip-to-chip links, 171 their state, 172 their MB/s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(_: *mut c_void, n: c_int, fields: *mut Field) -> c_uint {
    for field in unsafe { std::slice::from_raw_parts_mut(fields, n as usize) } {
        field.status = 0;
        field.value = match field.id {
            165 => u64::from(field.scope != 17),
            170 => 2,
            171 => 1,
            172 => 40_000,
            _ => {
                field.status = 3;
                0
            }
        };
    }
    0
}
