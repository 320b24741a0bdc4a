//! Questions to the CUDA driver. Only cudarc's lowest layer is used: the one above makes contexts, and a question needs none.

use std::ffi::CStr;

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use super::management::Library;
use super::{Answers, n_nvlinks};

/// The functions asked below, by their names in the library.
const FUNCTIONS: [&[u8]; 5] = [
    b"cuInit\0",
    b"cuDeviceGetCount\0",
    b"cuDeviceGet\0",
    b"cuDeviceGetAttribute\0",
    b"cuDeviceGetPCIBusId\0",
];

/// Whether the driver's library is there with all that is asked of it. Opens it; asks no device.
pub(super) fn is_usable() -> bool {
    // SAFETY: opening a library runs its initialisers; the driver's touch nothing of ours.
    if !unsafe { sys::is_culib_present() } {
        return false;
    }
    // SAFETY: as above. The library was there a moment ago, so that this does not panic.
    let library = unsafe { sys::culib() };
    // SAFETY: the addresses are looked for, never used.
    FUNCTIONS.iter().all(|name| unsafe { library.get::<*const ()>(*name) }.is_ok())
}

/// What the driver and the management library answer about every GPU; nothing when the driver finds none, or when one of them
/// does not answer.
pub(super) fn ask() -> Option<Vec<Answers>> {
    result::init().ok()?;
    let count = device::get_count().ok()?;
    let library = Library::open();
    (0..count).map(|ordinal| ask_one(ordinal, library.as_ref())).collect()
}

fn ask_one(ordinal: i32, library: Option<&Library>) -> Option<Answers> {
    let gpu = device::get(ordinal).ok()?;
    let bus_id = bus_id(gpu)?;
    let capability = (
        attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let sm = 10 * capability.0 + capability.1;
    // Drivers before 11.3 do not know the attribute; NCCL then takes it for no.
    let gdr = attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) == Some(1);
    let managed = library.and_then(|library| library.ask(&bus_id, sm, n_nvlinks(sm)));
    Some(Answers { ordinal: usize::try_from(ordinal).ok()?, bus_id, capability, gdr, managed })
}

fn attribute(gpu: CUdevice, which: CUdevice_attribute) -> Option<i32> {
    // SAFETY: the driver gave us this device.
    unsafe { device::get_attribute(gpu, which) }.ok()
}

fn bus_id(gpu: CUdevice) -> Option<String> {
    let mut text = [0u8; 32];
    // SAFETY: the driver writes at most 32 bytes into the 32 that `text` has, a terminator among them.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, gpu) }.result().ok()?;
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?.to_owned())
}
