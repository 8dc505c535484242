//! From verdicts to instructions of classic BPF.

use cove_sys::seccomp::Instruction;

use super::policy::{Alternative, Half, Policy, Verdict};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENTS: u32 = 16;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const EPERM: u32 = ERRNO | 1;
/// An error of 0 is none: the caller gets 0, and the kernel does nothing.
const SUCCESS: u32 = ERRNO;
const ENOSYS: u32 = ERRNO | 38;

/// Numbers from here on are x32's on x86_64, and nothing elsewhere.
const X32: u32 = 0x4000_0000;

/// A verdict from a number on, up to the next one's.
struct Range {
    from: u32,
    verdict: Verdict,
}

pub fn compile(policy: &Policy) -> Vec<Instruction> {
    let mut program = vec![
        load(MACHINE),
        jump_if(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        give(KILL_PROCESS),
        load(NUMBER),
        jump_if(JUMP_GREATER_OR_EQUAL, X32, 0, 1),
        give(ENOSYS),
    ];
    program.extend(search(&ranges(policy)));
    program
}

/// Neighbours with one verdict become one range; what has no verdict is absent.
fn ranges(policy: &Policy) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    let mut add = |from: u32, verdict: Verdict| {
        if ranges.last().is_none_or(|last| last.verdict != verdict) {
            ranges.push(Range { from, verdict });
        }
    };
    let mut next = 0;
    for (&number, verdict) in policy {
        if number > next {
            add(next, Verdict::Absent);
        }
        add(number, verdict.clone());
        next = number + 1;
    }
    add(next, Verdict::Absent);
    ranges
}

fn search(ranges: &[Range]) -> Vec<Instruction> {
    match ranges {
        [] => vec![give(ENOSYS)],
        [only] => decide(&only.verdict),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let (below, above) = (search(low), search(high));
            let from = high[0].from;
            let mut program = match u8::try_from(below.len()) {
                Ok(over) => vec![jump_if(JUMP_GREATER_OR_EQUAL, from, over, 0)],
                // Conditional jumps reach 255 instructions, plain ones any number.
                Err(_) => vec![jump_if(JUMP_GREATER_OR_EQUAL, from, 0, 1), jump(below.len() as u32)],
            };
            program.extend(below);
            program.extend(above);
            program
        }
    }
}

fn decide(verdict: &Verdict) -> Vec<Instruction> {
    match verdict {
        Verdict::Allow => vec![give(ALLOW)],
        Verdict::Refuse => vec![give(EPERM)],
        Verdict::Absent => vec![give(ENOSYS)],
        Verdict::Pretend => vec![give(SUCCESS)],
        Verdict::When(alternatives, error) => choose(alternatives, ALLOW, ERRNO | u32::from(*error)),
        Verdict::Unless(alternatives, error) => choose(alternatives, ERRNO | u32::from(*error), ALLOW),
    }
}

fn choose(alternatives: &[Alternative], if_any: u32, otherwise: u32) -> Vec<Instruction> {
    let mut program = Vec::new();
    for alternative in alternatives {
        // Each comparison is three instructions; a failed one leaps behind the alternative's return.
        let length = 3 * alternative.len();
        for (index, comparison) in alternative.iter().enumerate() {
            let rest = length - 3 * (index + 1) + 1;
            // Both machines we know are little-endian.
            let half = if comparison.half == Half::Upper { 4 } else { 0 };
            program.push(load(ARGUMENTS + 8 * u32::from(comparison.argument) + half));
            program.push(Instruction { code: AND, jump_true: 0, jump_false: 0, value: comparison.mask });
            let (if_equal, if_not) = if comparison.equal { (0, rest as u8) } else { (rest as u8, 0) };
            program.push(jump_if(JUMP_EQUAL, comparison.value, if_equal, if_not));
        }
        program.push(give(if_any));
    }
    program.push(give(otherwise));
    program
}

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD_WORD, jump_true: 0, jump_false: 0, value: offset }
}

fn jump_if(code: u16, value: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, value }
}

fn jump(over: u32) -> Instruction {
    Instruction { code: JUMP, jump_true: 0, jump_false: 0, value: over }
}

fn give(answer: u32) -> Instruction {
    Instruction { code: RETURN, jump_true: 0, jump_false: 0, value: answer }
}

#[cfg(test)]
mod tests {
    use cove_sys::namespace::Secret;

    use super::super::{Rules, policy};
    use super::*;

    const EAFNOSUPPORT: u32 = ERRNO | 97;

    /// The kernel's machine, as far as this module speaks to it.
    fn run(program: &[Instruction], number: u32, machine: u32, arguments: [u64; 6]) -> u32 {
        let (mut accumulator, mut at) = (0u32, 0usize);
        loop {
            let instruction = program[at];
            at += 1;
            let leap = |holds: bool| usize::from(if holds { instruction.jump_true } else { instruction.jump_false });
            match instruction.code {
                LOAD_WORD => {
                    accumulator = match instruction.value {
                        NUMBER => number,
                        MACHINE => machine,
                        offset => {
                            let argument = arguments[(offset - ARGUMENTS) as usize / 8];
                            if offset % 8 == 4 { (argument >> 32) as u32 } else { argument as u32 }
                        }
                    }
                }
                AND => accumulator &= instruction.value,
                JUMP => at += instruction.value as usize,
                JUMP_EQUAL => at += leap(accumulator == instruction.value),
                JUMP_GREATER_OR_EQUAL => at += leap(accumulator >= instruction.value),
                RETURN => return instruction.value,
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn the_program_answers_every_number_as_the_policy_says() {
        let policy = policy::built_in();
        let program = compile(&policy);
        assert!(program.len() < 4096, "the kernel takes 4096 instructions, this are {}", program.len());
        for number in 0..2000 {
            let expected = match policy.get(&number) {
                Some(Verdict::Allow) => ALLOW,
                Some(Verdict::Refuse) => EPERM,
                Some(Verdict::Absent) | None => ENOSYS,
                Some(Verdict::Pretend) => SUCCESS,
                Some(Verdict::When(..) | Verdict::Unless(..)) => continue,
            };
            assert_eq!(run(&program, number, ARCHITECTURE, [0; 6]), expected, "system call {number}");
        }
    }

    #[test]
    fn other_machines_calls_are_never_let_through() {
        let program = compile(&policy::built_in());
        assert_eq!(run(&program, 1, 0x4000_0003, [0; 6]), KILL_PROCESS, "i386");
        assert_eq!(run(&program, X32 + 1, ARCHITECTURE, [0; 6]), ENOSYS, "x32");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn who_shares_files_with_the_host_makes_no_set_user_id_programs() {
        let rules = Rules { shared_files: true, volumes: false };
        let (ordinary, sharing) = (compile(&policy::built_in()), compile(&policy::built_in_for(rules)));
        let both = |number, arguments: [u64; 4]| {
            let [a, b, c, d] = arguments;
            [&ordinary, &sharing].map(|program| run(program, number, ARCHITECTURE, [a, b, c, d, 0, 0]))
        };
        let (chmod, fchmod, fchmodat, fchmodat2, open, openat, creat, mknod) = (90, 91, 268, 452, 2, 257, 85, 133);
        assert_eq!(both(chmod, [0, 0o755, 0, 0]), [ALLOW, ALLOW]);
        assert_eq!(both(chmod, [0, 0o4755, 0, 0]), [ALLOW, EPERM]);
        assert_eq!(both(chmod, [0, 0o2755, 0, 0]), [ALLOW, EPERM]);
        assert_eq!(both(fchmod, [0, 0o6755, 0, 0]), [ALLOW, EPERM]);
        assert_eq!(both(fchmodat, [0, 0, 0o4755, 0]), [ALLOW, EPERM]);
        assert_eq!(both(fchmodat2, [0, 0, 0o4755, 0]), [ALLOW, EPERM]);
        assert_eq!(both(creat, [0, 0o4755, 0, 0]), [ALLOW, EPERM]);
        assert_eq!(both(mknod, [0, 0o104_755, 0, 0]), [ALLOW, EPERM]);
        assert_eq!(both(open, [0, 0o101, 0o4755, 0]), [ALLOW, EPERM]);
        assert_eq!(both(openat, [0, 0, 0o101, 0o2755]), [ALLOW, EPERM]);
        assert_eq!(both(openat, [0, 0, 0o20_200_001, 0o4755]), [ALLOW, EPERM], "O_TMPFILE");
        assert_eq!(both(openat, [0, 0, 0, 0xffff_ffff]), [ALLOW, ALLOW], "no file is made");
        assert_eq!(both(437, [0, 0, 0, 0]), [ALLOW, ENOSYS], "openat2");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn of_what_btrfs_has_of_its_own_only_shared_blocks_remain_and_with_volumes_not_those() {
        let (ioctl, copy_file_range) = (16, 326);
        let with_volumes = Rules { shared_files: false, volumes: true };
        let both = Rules { shared_files: true, volumes: true };
        let [ordinary, volumes, both] =
            [Rules::default(), with_volumes, both].map(|rules| compile(&policy::built_in_for(rules)));
        let ask = |program: &[Instruction], request: u64| run(program, ioctl, ARCHITECTURE, [3, request, 0, 0, 0, 0]);
        let shared = [0x4004_9409, 0x4020_940d, 0xc018_9436];
        for number in 0..=0xff {
            // Each number with the sizes and directions that the kernel knows, and others.
            for upper in [0x0000, 0x4004, 0x4020, 0x5000, 0x8008, 0xc018, 0xd000, 0xffff] {
                let request = (upper << 16) | 0x9400 | number;
                let expected = if shared.contains(&request) { ALLOW } else { EPERM };
                assert_eq!(ask(&ordinary, request), expected, "{request:#x}");
                assert_eq!([&volumes, &both].map(|program| ask(program, request)), [EPERM; 2], "{request:#x}");
            }
        }
        for program in [&ordinary, &volumes, &both] {
            assert_eq!(ask(program, 0x5401), ALLOW, "TCGETS");
            assert_eq!(ask(program, 0x8008_6601), ALLOW, "FS_IOC_GETFLAGS");
            assert_eq!(ask(program, 0x5412), EPERM, "TIOCSTI");
        }
        let copy = |program: &[Instruction]| run(program, copy_file_range, ARCHITECTURE, [0; 6]);
        assert_eq!([copy(&ordinary), copy(&volumes), copy(&both)], [ALLOW, ENOSYS, ENOSYS]);
    }

    #[test]
    fn only_who_knows_the_secret_enters_a_user_namespace() {
        let secret = Secret::new().unwrap();
        let program = compile(&policy::admit(policy::built_in(), secret));
        let [first, second] = secret.halves().map(u64::from);
        let (user, mount) = (u64::from(secret.kind()), 0x0002_0000);
        let enter =
            |descriptor: u64, kind: u64| run(&program, Secret::CALL, ARCHITECTURE, [descriptor, kind, 0, 0, 0, 0]);
        assert_eq!(enter((first << 32) | 5, (second << 32) | user), ALLOW);
        assert_eq!(enter(5, user), EPERM);
        assert_eq!(enter((first << 32) | 5, user), EPERM);
        assert_eq!(enter(5, (second << 32) | user), EPERM);
        assert_eq!(enter((first << 32) | 5, (second << 32) | mount), EPERM);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn arguments_decide_where_the_policy_says_so() {
        let program = compile(&policy::built_in());
        let call = |number, a: u64, b: u64, c: u64| run(&program, number, ARCHITECTURE, [a, b, c, 0, 0, 0]);
        let (socket, clone, ioctl, personality) = (41, 56, 16, 135);
        assert_eq!(call(socket, 2, 1, 0), ALLOW, "an ordinary socket");
        assert_eq!(call(socket, 16, 3, 0), ALLOW, "netlink for routes");
        assert_eq!(call(socket, 16, 3, 12), EAFNOSUPPORT, "netlink for netfilter");
        assert_eq!(call(socket, 38, 5, 0), EAFNOSUPPORT, "AF_ALG");
        assert_eq!(call(socket, 40, 1, 0), EAFNOSUPPORT, "AF_VSOCK");
        assert_eq!(call(socket, 10, 2, 17), ALLOW, "UDP by name");
        assert_eq!(call(socket, 2, 1, 132), EAFNOSUPPORT, "SCTP");
        assert_eq!(call(socket, 10, 1, 262), EAFNOSUPPORT, "MPTCP");
        assert_eq!(call(54, 3, 6, 31), ERRNO | 92, "TCP_ULP");
        assert_eq!(call(54, 3, 6, 1), ALLOW, "TCP_NODELAY");
        for option in [26, 50, 51, 52] {
            assert_eq!(call(54, 3, 1, option), ERRNO | 92, "a program on a socket, option {option}");
        }
        assert_eq!(call(54, 3, 1, 2), ALLOW, "SO_REUSEADDR");
        assert_eq!(call(53, 1, 1, 0), ALLOW, "a pair of Unix sockets");
        assert_eq!(call(53, 30, 1, 0), EAFNOSUPPORT, "a pair of AF_TIPC");
        assert_eq!(call(ioctl, 0, 0x5423, 0), EPERM, "TIOCSETD");
        assert_eq!(call(206, 1, 0, 0), ENOSYS, "io_setup");
        assert_eq!(call(clone, 0x0120_0011, 0, 0), ALLOW, "a fork");
        assert_eq!(call(clone, 0x1000_0011, 0, 0), EPERM, "a new user namespace");
        assert_eq!(call(ioctl, 0, 0x5401, 0), ALLOW, "TCGETS");
        assert_eq!(call(ioctl, 0, 0x5412, 0), EPERM, "TIOCSTI");
        assert_eq!(call(ioctl, 0, 0xffff_ffff_0000_5412, 0), EPERM, "TIOCSTI with high bits the kernel ignores");
        assert_eq!(call(personality, 0xffff_ffff, 0, 0), ALLOW, "asking");
        assert_eq!(call(personality, 0x0004_0000, 0, 0), EPERM, "no randomisation");
    }
}
