//! Questions to the management library (NVML), which knows what is at the far end of an NVLink. Whatever it does not answer is left
//! out: the topology then has fewer links, not an error.

use std::ffi::{CStr, CString, c_uint};
use std::fmt;
use std::mem::zeroed;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlEnableState_enum_NVML_FEATURE_ENABLED, nvmlFieldValue_t,
    nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED, nvmlPciInfo_t,
};

use super::{LinkAnswer, Managed};

const FILE: &str = "libnvidia-ml.so.1";
/// Field ids of the library's header.
mod field {
    pub(super) const NVLINK_STATE: u32 = 165;
    pub(super) const C2C_COUNT: u32 = 170;
    pub(super) const C2C_STATUS: u32 = 171;
    pub(super) const C2C_MAX_BW: u32 = 172;
}
/// More chip-to-chip links than any GPU has: an answer beyond is no answer.
const MAX_C2C: u32 = 64;

/// The library, opened and started.
pub(super) struct Library(NvmlLib);

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FILE)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Some(stop) = found(&self.0.nvmlShutdown) {
            // SAFETY: it was started in `open`, and nobody asks it any more.
            let _ = unsafe { stop() };
        }
    }
}

/// A function, where this release of the library has it.
fn found<F: Copy, E>(function: &Result<F, E>) -> Option<F> {
    function.as_ref().ok().copied()
}

/// The value behind an answer, when the call succeeded.
fn answer<T>(status: u32, value: T) -> Option<T> {
    (status == 0).then_some(value)
}

impl Library {
    /// Opens and starts it; nothing when it is not there or finds no driver.
    pub(super) fn open() -> Option<Self> {
        // SAFETY: opening a library runs its initialisers; this one's touch nothing of ours.
        let library = unsafe { NvmlLib::new(FILE) }.ok()?;
        let start = found(&library.nvmlInit_v2)?;
        // SAFETY: starting it has no preconditions.
        answer(unsafe { start() }, Self(library))
    }

    /// All it knows about the GPU at that address that a topology wants.
    pub(super) fn ask(&self, bus_id: &str, sm: i32, n_nvlinks: u32) -> Option<Managed> {
        let device = self.device(bus_id)?;
        let nvlinks = (0..n_nvlinks).map(|link| LinkAnswer {
            carries_p2p: self.carries_p2p(device, link),
            is_up: self.is_up(device, sm, link),
            remote: self.remote(device, link),
        });
        let c2c = if sm >= 90 { self.c2c(device) } else { Vec::new() };
        Some(Managed { index: self.index(device), nvlinks: nvlinks.collect(), c2c })
    }

    fn device(&self, bus_id: &str) -> Option<nvmlDevice_t> {
        let function = found(&self.0.nvmlDeviceGetHandleByPciBusId_v2)?;
        let bus_id = CString::new(bus_id).ok()?;
        // SAFETY: the handle is a pointer, for which zero is a value.
        let mut device: nvmlDevice_t = unsafe { zeroed() };
        // SAFETY: the text ends with a zero byte, and the handle has room.
        let status = unsafe { function(bus_id.as_ptr(), &raw mut device) };
        answer(status, device)
    }

    fn index(&self, device: nvmlDevice_t) -> Option<usize> {
        let function = found(&self.0.nvmlDeviceGetIndex)?;
        let mut index: c_uint = 0;
        // SAFETY: the library gave us the handle, and `index` has room.
        let status = unsafe { function(device, &raw mut index) };
        usize::try_from(answer(status, index)?).ok()
    }

    fn carries_p2p(&self, device: nvmlDevice_t, link: u32) -> bool {
        let Some(function) = found(&self.0.nvmlDeviceGetNvLinkCapability) else { return false };
        let mut able: c_uint = 0;
        let which = nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED;
        // SAFETY: the library gave us the handle, and `able` has room; an unknown link is an error status.
        let status = unsafe { function(device, link, which, &raw mut able) };
        answer(status, able).is_some_and(|able| able != 0)
    }

    /// Newer GPUs tell the state of a link only as a field.
    fn is_up(&self, device: nvmlDevice_t, sm: i32, link: u32) -> bool {
        if sm >= 90 {
            return self.field(device, field::NVLINK_STATE, link)
                == Some(nvmlEnableState_enum_NVML_FEATURE_ENABLED);
        }
        let Some(function) = found(&self.0.nvmlDeviceGetNvLinkState) else { return false };
        let mut state = 0;
        // SAFETY: the library gave us the handle, and `state` has room; an unknown link is an error status.
        let status = unsafe { function(device, link, &raw mut state) };
        answer(status, state) == Some(nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn remote(&self, device: nvmlDevice_t, link: u32) -> Option<String> {
        let function = found(&self.0.nvmlDeviceGetNvLinkRemotePciInfo_v2)?;
        // SAFETY: the struct holds numbers and characters, for which zero is a value.
        let mut info: nvmlPciInfo_t = unsafe { zeroed() };
        // SAFETY: the library gave us the handle, and `info` has room; an unknown link is an error status.
        let status = unsafe { function(device, link, &raw mut info) };
        let info = answer(status, info)?;
        // Characters are signed on some machines and unsigned on others.
        let bytes = info.busId.map(|character| character.to_ne_bytes()[0]);
        let text = CStr::from_bytes_until_nul(&bytes).ok()?;
        Some(text.to_string_lossy().into_owned())
    }

    /// MB/s of every chip-to-chip link that is up.
    fn c2c(&self, device: nvmlDevice_t) -> Vec<i32> {
        let count = self.field(device, field::C2C_COUNT, 0).filter(|&count| count <= MAX_C2C).unwrap_or(0);
        let up = (0..count).filter(|&link| self.field(device, field::C2C_STATUS, link) == Some(1));
        up.filter_map(|link| i32::try_from(self.field(device, field::C2C_MAX_BW, link)?).ok()).collect()
    }

    /// One of the library's numbered values, of one link where `scope` says so.
    fn field(&self, device: nvmlDevice_t, id: u32, scope: u32) -> Option<u32> {
        let function = found(&self.0.nvmlDeviceGetFieldValues)?;
        // SAFETY: the struct holds numbers, for which zero is a value.
        let mut value: nvmlFieldValue_t = unsafe { zeroed() };
        value.fieldId = id;
        value.scopeId = scope;
        // SAFETY: the library gave us the handle, and exactly one value is asked for.
        let status = unsafe { function(device, 1, &raw mut value) };
        let value = answer(status, value).filter(|value| value.nvmlReturn == 0)?;
        // SAFETY: all members of the union are numbers, and the library fills at least these four bytes.
        Some(unsafe { value.value.uiVal })
    }
}
