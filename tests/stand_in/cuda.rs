//! A stand-in for the driver's library with the five functions the probe asks: as many GPUs as STAND_IN_GPUS says, 00ee:0N:00.0 and
//! sm 90 each. `--cfg old` leaves one function out.

use std::ffi::{c_char, c_int, c_uint};

fn n_gpus() -> c_int {
    std::env::var("STAND_IN_GPUS").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// 100 is the driver's "no device".
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    if n_gpus() > 0 { 0 } else { 100 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { *count = n_gpus() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    unsafe { *device = ordinal };
    0
}

/// 75 and 76 are the compute capability, 116 is GPUDirect RDMA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, _device: c_int) -> c_int {
    let known = match which {
        75 => 9,
        76 => 0,
        116 => 1,
        _ => return 1,
    };
    unsafe { *value = known };
    0
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) -> c_int {
    let address = format!("00ee:0{device}:00.0\0");
    if address.len() > len as usize {
        return 1;
    }
    unsafe { std::ptr::copy_nonoverlapping(address.as_ptr().cast(), text, address.len()) };
    0
}
