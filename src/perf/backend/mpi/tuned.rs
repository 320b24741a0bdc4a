//! Open MPI's parameters through the MPI tools interface: which algorithm its tuned component is locked to, and locking it.
//!
//! The library reads them when it makes a communicator, and only where `coll_tuned_use_dynamic_rules` was on at its start; that one
//! cannot be changed later. The unsafe code of this file is its calls into the C interface.

use std::ffi::{CString, c_char, c_int, c_void};

use analysis::record::{Tuned, tuned};
use mpi::ffi;

use crate::engine::error::{Error, Result};
use crate::engine::types::Collective;
use crate::perf::backend::mpi::succeeded;

const DYNAMIC: &str = "coll_tuned_use_dynamic_rules";
const FILE: &str = "coll_tuned_dynamic_rules_filename";

/// The parameters of one collective.
#[derive(Debug)]
pub(super) struct Tools {
    collective: &'static str,
    algorithm: String,
    segment: String,
    /// Algorithm and segment at the start: what the environment says.
    at_start: (c_int, c_int),
}

impl Tools {
    /// Finds the parameters; nothing where the library is none that has them.
    pub(super) fn start(collective: Collective) -> Option<Self> {
        let mut granted: c_int = 0;
        // SAFETY: the out pointer is a local of the right type; the interface may be started more than once.
        let code = unsafe { ffi::MPI_T_init_thread(ffi::RSMPI_THREAD_MULTIPLE, &mut granted) };
        succeeded(code, "MPI_T_init_thread").ok()?;
        let collective = collective.name();
        let algorithm = format!("coll_tuned_{}_algorithm", collective.replace('_', ""));
        let segment = format!("{algorithm}_segmentsize");
        let mut tools = Self { collective, algorithm, segment, at_start: (0, 0) };
        tools.at_start = (read(&tools.algorithm)?, read(&tools.segment)?);
        Some(tools)
    }

    /// What the library was locked to from outside.
    pub(super) fn now(&self) -> Option<&'static Tuned> {
        if !is_dynamic() {
            return None;
        }
        if rules_file().is_some() {
            return Some(&tuned::RULES);
        }
        Tuned::numbered(self.collective, u32::try_from(self.at_start.0).unwrap_or(0))
    }

    /// Locks communicators made from now on to an algorithm.
    pub(super) fn lock(&self, library: &Tuned) -> Result<()> {
        let refused = |why: String| Error::Unavailable(format!("--algo {}: {why}", library.word()));
        if !is_dynamic() {
            return Err(refused(format!(
                "Open MPI chooses by its built-in table unless it is started with OMPI_MCA_{DYNAMIC}=1"
            )));
        }
        if let Some(file) = rules_file() {
            return Err(refused(format!("the rules in {file} go first; unset OMPI_MCA_{FILE}")));
        }
        write(&self.segment, library.segment_bytes as c_int)?;
        write(&self.algorithm, library.number as c_int)?;
        match (read(&self.algorithm), read(&self.segment)) {
            (Some(number), Some(_)) if number == library.number as c_int => Ok(()),
            now => Err(refused(format!("the library keeps {} at {:?}", self.algorithm, now.0))),
        }
    }

    /// Back to what the environment says.
    pub(super) fn unlock(&self) -> Result<()> {
        write(&self.segment, self.at_start.1)?;
        write(&self.algorithm, self.at_start.0)
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        // SAFETY: the interface was started. While it is open the library does not close its components at MPI_Finalize.
        unsafe { ffi::MPI_T_finalize() };
    }
}

fn is_dynamic() -> bool {
    let mut value = [0_u8; 8];
    with(DYNAMIC, |handle, _| {
        // SAFETY: the handle is open and a truth value is at most 8 bytes long.
        unsafe { ffi::MPI_T_cvar_read(handle, value.as_mut_ptr().cast::<c_void>()) }
    })
    .is_some_and(|code| code == 0 && value[0] != 0)
}

/// The rules file that the library was started with.
fn rules_file() -> Option<String> {
    let mut text = Vec::new();
    let code = with(FILE, |handle, count| {
        // A path that was set is at most as long as the library says, and it says so with the terminator.
        text = vec![0_u8; (count.max(0) as usize).max(1 << 16)];
        // SAFETY: the handle is open and the buffer at least as long as the library asks for.
        unsafe { ffi::MPI_T_cvar_read(handle, text.as_mut_ptr().cast::<c_void>()) }
    })?;
    let end = text.iter().position(|byte| *byte == 0)?;
    let name = String::from_utf8_lossy(&text[..end]).into_owned();
    (code == 0 && !name.is_empty()).then_some(name)
}

fn read(name: &str) -> Option<c_int> {
    let mut value: [c_int; 4] = [0; 4];
    let code = with(name, |handle, count| {
        if count != 1 {
            return -1;
        }
        // SAFETY: the handle is open and its one integer fits.
        unsafe { ffi::MPI_T_cvar_read(handle, value.as_mut_ptr().cast::<c_void>()) }
    })?;
    (code == 0).then_some(value[0])
}

fn write(name: &str, value: c_int) -> Result<()> {
    let code = with(name, |handle, _| {
        // SAFETY: the handle is open and the parameter is one integer, which `read` has seen.
        unsafe { ffi::MPI_T_cvar_write(handle, (&raw const value).cast::<c_void>()) }
    });
    match code {
        Some(0) => Ok(()),
        code => Err(Error::Unavailable(format!("Open MPI does not take {value} for {name} (code {code:?})"))),
    }
}

/// Opens a parameter for one use; nothing where there is none of that name.
fn with(name: &str, use_it: impl FnOnce(ffi::MPI_T_cvar_handle, c_int) -> c_int) -> Option<c_int> {
    let text = CString::new(name).ok()?;
    let (mut index, mut count): (c_int, c_int) = (0, 0);
    let mut handle: ffi::MPI_T_cvar_handle = std::ptr::null_mut();
    // SAFETY: the interface is started; the name ends in a zero and the out pointers are locals of the right types. The parameters
    // asked for belong to no object.
    let code = unsafe {
        match ffi::MPI_T_cvar_get_index(text.as_ptr().cast::<c_char>(), &mut index) {
            0 => ffi::MPI_T_cvar_handle_alloc(index, std::ptr::null_mut(), &mut handle, &mut count),
            code => code,
        }
    };
    if code != 0 {
        return None;
    }
    let used = use_it(handle, count);
    // SAFETY: the handle was opened above and is not used again.
    unsafe { ffi::MPI_T_cvar_handle_free(&mut handle) };
    Some(used)
}
