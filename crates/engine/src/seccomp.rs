//! The filter on system calls: `policies/default` as a program for the kernel, with `policies/shared-files` on top for
//! sandboxes that write into folders of the host, and `policies/volumes` for those that have volumes.
//!
//! Names become numbers of this machine, neighbouring numbers with one answer become ranges, and the ranges become a
//! binary search: about eight comparisons decide a call, where a list would need hundreds. Only the machine's own
//! 64-bit calls exist: a 32-bit call (`int 0x80`) ends the process, x32 numbers are answered with ENOSYS.

mod policy;
mod program;

use std::cell::OnceCell;

use cove_sys::namespace::Secret;
use cove_sys::seccomp::Instruction;
use serde::{Deserialize, Serialize};

use crate::refused::{Refused, Step};

/// Which policies a sandbox gets on top of the ordinary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rules {
    /// It writes into folders of the host.
    pub shared_files: bool,
    /// It has volumes.
    pub volumes: bool,
}

/// The compiled policies; made once per spawner.
///
/// A filter becomes machine code, and the kernel has one bounded memory for that, which all programs of the host share
/// (`net.core.bpf_jit_limit`). Sandboxes can fill it up by filters of their own; only for who may load programs into the kernel (the host's
/// root) there is always some left. So a filter is put up as root, before the launcher enters the sandbox's user namespace, and
/// lets that one step through for who knows a secret: 64 bits that setns(2) ignores.
pub struct Filter {
    secret: Secret,
    /// By their rules; all but the ordinary one are made when first needed.
    programs: [OnceCell<Vec<Instruction>>; 4],
}

impl Filter {
    /// The built-in policy; its text is part of the program and tested with it.
    pub fn new() -> Result<Filter, Refused> {
        let secret = Secret::new().step("make a secret")?;
        let filter = Filter { secret, programs: Default::default() };
        filter.program(Rules::default());
        Ok(filter)
    }

    fn program(&self, rules: Rules) -> &[Instruction] {
        let index = usize::from(rules.shared_files) + 2 * usize::from(rules.volumes);
        self.programs[index].get_or_init(|| program::compile(&policy::admit(policy::built_in_for(rules), self.secret)))
    }

    /// With which a filtered process enters its user namespace.
    pub fn secret(&self) -> Secret {
        self.secret
    }

    /// Needs CAP_SYS_ADMIN in the caller's user namespace: setuid programs shall work inside, so `no_new_privs` is not set.
    pub fn install(&self, rules: Rules) -> Result<(), Refused> {
        cove_sys::seccomp::install(self.program(rules)).step("install the seccomp filter")
    }
}

/// Leaves the calling process its memory and the descriptors that it has open (`policies/text`): for one of ours that reads
/// what strangers wrote. It must have one thread.
pub fn confine_to_text() -> Result<(), Refused> {
    rustix::thread::set_no_new_privs(true).step("give up new privileges")?;
    let program = program::compile(&policy::built_in_for_text());
    cove_sys::seccomp::install(&program).step("install the seccomp filter")
}

/// For the fuzzer: a policy's text to the length of its program.
#[cfg(feature = "fuzzing")]
pub fn compile_text(text: &str) -> Result<usize, String> {
    /// BPF_MAXINSNS: the kernel refuses longer ones.
    const MOST: usize = 4096;
    let length = program::compile(&policy::of_text(text)?).len();
    if length <= MOST { Ok(length) } else { Err(format!("{length} instructions are more than the kernel takes")) }
}
