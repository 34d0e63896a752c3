//! System calls as the page writes them: `name`, or `name(WHICH)` if an argument selects the operation.

use std::fmt;
use std::str::FromStr;

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use crate::names;

/// The argument that selects the operation of a system call, such as the command of `fcntl`.
struct Selector {
    call: &'static str,
    argument: u8,
    /// The bits of the argument that select the operation.
    mask: u64,
    values: &'static [(&'static str, u64)],
}

const fn word(value: i32) -> u64 {
    value as u32 as u64
}

const SELECTORS: &[Selector] = &[
    Selector {
        call: "membarrier",
        argument: 0,
        mask: !0,
        values: &[
            ("MEMBARRIER_CMD_QUERY", word(libc::MEMBARRIER_CMD_QUERY)),
            (
                "MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED",
                word(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED),
            ),
            ("MEMBARRIER_CMD_PRIVATE_EXPEDITED", word(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)),
        ],
    },
    Selector {
        call: "fcntl",
        argument: 1,
        mask: !0,
        values: &[
            ("F_DUPFD_CLOEXEC", word(libc::F_DUPFD_CLOEXEC)),
            ("F_SETLEASE", word(libc::F_SETLEASE)),
            // The `libc` crate does not have it for this target.
            ("F_SETSIG", 10),
            ("F_GETFD", word(libc::F_GETFD)),
            ("F_SETFD", word(libc::F_SETFD)),
            ("F_GETFL", word(libc::F_GETFL)),
            ("F_SETFL", word(libc::F_SETFL)),
            ("F_ADD_SEALS", word(libc::F_ADD_SEALS)),
            ("F_GET_SEALS", word(libc::F_GET_SEALS)),
            ("F_OFD_SETLK", word(libc::F_OFD_SETLK)),
            ("F_OFD_GETLK", word(libc::F_OFD_GETLK)),
            ("F_SETLK", word(libc::F_SETLK)),
            ("F_GETLK", word(libc::F_GETLK)),
        ],
    },
    Selector {
        call: "ioctl",
        argument: 1,
        mask: !0,
        values: &[
            ("FIONBIO", libc::FIONBIO),
            ("FIONREAD", libc::FIONREAD),
            ("TIOCOUTQ", libc::TIOCOUTQ),
            ("UDMABUF_CREATE", 0x4018_7542),
            ("DMA_HEAP_IOCTL_ALLOC", 0xc018_4800),
            ("DMA_BUF_IOCTL_SYNC", 0x4008_6200),
            ("PIDFD_GET_INFO", 0xc040_ff0b),
            ("BTRFS_IOC_FS_INFO", 0x8400_941f),
            ("FS_IOC_GETFSSYSFSPATH", 0x8081_1501),
        ],
    },
    Selector {
        call: "madvise",
        argument: 2,
        mask: !0,
        values: &[
            ("MADV_DONTNEED", word(libc::MADV_DONTNEED)),
            ("MADV_HUGEPAGE", word(libc::MADV_HUGEPAGE)),
            ("MADV_NOHUGEPAGE", word(libc::MADV_NOHUGEPAGE)),
            ("MADV_COLLAPSE", word(libc::MADV_COLLAPSE)),
            ("MADV_POPULATE_READ", word(libc::MADV_POPULATE_READ)),
            ("MADV_POPULATE_WRITE", word(libc::MADV_POPULATE_WRITE)),
            ("MADV_DOFORK", word(libc::MADV_DOFORK)),
            ("MADV_DONTFORK", word(libc::MADV_DONTFORK)),
            ("MADV_DONTDUMP", word(libc::MADV_DONTDUMP)),
            ("MADV_WIPEONFORK", word(libc::MADV_WIPEONFORK)),
        ],
    },
    Selector {
        call: "prctl",
        argument: 0,
        mask: !0,
        values: &[("PR_SET_NAME", word(libc::PR_SET_NAME))],
    },
    Selector {
        call: "mmap",
        argument: 3,
        mask: word(libc::MAP_TYPE | libc::MAP_ANONYMOUS),
        values: &[
            ("MAP_PRIVATE|MAP_ANONYMOUS", word(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)),
            ("MAP_SHARED|MAP_ANONYMOUS", word(libc::MAP_SHARED | libc::MAP_ANONYMOUS)),
            ("MAP_PRIVATE", word(libc::MAP_PRIVATE)),
            ("MAP_SHARED", word(libc::MAP_SHARED)),
            ("MAP_SHARED_VALIDATE", word(libc::MAP_SHARED_VALIDATE)),
        ],
    },
    Selector {
        call: "futex",
        argument: 1,
        mask: !word(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME),
        values: &[
            ("FUTEX_WAIT", word(libc::FUTEX_WAIT)),
            ("FUTEX_WAKE", word(libc::FUTEX_WAKE)),
            ("FUTEX_WAIT_BITSET", word(libc::FUTEX_WAIT_BITSET)),
            ("FUTEX_CMP_REQUEUE", word(libc::FUTEX_CMP_REQUEUE)),
        ],
    },
    Selector {
        call: "rt_sigaction",
        argument: 0,
        mask: !0,
        values: &[("SIGSEGV", word(libc::SIGSEGV)), ("SIGBUS", word(libc::SIGBUS)), ("33", 33)],
    },
    Selector { call: "socket", argument: 0, mask: !0, values: &[("AF_UNIX", word(libc::AF_UNIX))] },
    Selector {
        call: "socketpair",
        argument: 0,
        mask: !0,
        values: &[("AF_UNIX", word(libc::AF_UNIX))],
    },
    Selector { call: "getsockopt", argument: 2, mask: !0, values: SOCKET_OPTIONS },
    Selector { call: "setsockopt", argument: 2, mask: !0, values: SOCKET_OPTIONS },
    Selector {
        call: "fadvise64",
        argument: 3,
        mask: !0,
        values: &[
            ("POSIX_FADV_RANDOM", word(libc::POSIX_FADV_RANDOM)),
            ("POSIX_FADV_SEQUENTIAL", word(libc::POSIX_FADV_SEQUENTIAL)),
            ("POSIX_FADV_WILLNEED", word(libc::POSIX_FADV_WILLNEED)),
            ("POSIX_FADV_DONTNEED", word(libc::POSIX_FADV_DONTNEED)),
        ],
    },
    Selector {
        call: "prlimit64",
        argument: 1,
        mask: !0,
        values: &[
            ("RLIMIT_FSIZE", libc::RLIMIT_FSIZE as u64),
            ("RLIMIT_NOFILE", libc::RLIMIT_NOFILE as u64),
            ("RLIMIT_MEMLOCK", libc::RLIMIT_MEMLOCK as u64),
            ("RLIMIT_AS", libc::RLIMIT_AS as u64),
            ("RLIMIT_DATA", libc::RLIMIT_DATA as u64),
            ("RLIMIT_STACK", libc::RLIMIT_STACK as u64),
        ],
    },
];

const SOCKET_OPTIONS: &[(&str, u64)] = &[
    ("SO_PEERCRED", word(libc::SO_PEERCRED)),
    ("SO_PASSCRED", word(libc::SO_PASSCRED)),
    ("SO_PASSSEC", word(libc::SO_PASSSEC)),
    ("SO_PASSPIDFD", 76),
    ("SO_TYPE", word(libc::SO_TYPE)),
    ("SO_DOMAIN", word(libc::SO_DOMAIN)),
    ("SO_ACCEPTCONN", word(libc::SO_ACCEPTCONN)),
    ("SO_OOBINLINE", word(libc::SO_OOBINLINE)),
    ("SO_LINGER", word(libc::SO_LINGER)),
    ("SO_SNDBUF", word(libc::SO_SNDBUF)),
    ("SO_RCVBUF", word(libc::SO_RCVBUF)),
    ("SO_ERROR", word(libc::SO_ERROR)),
    ("SO_PEEK_OFF", word(libc::SO_PEEK_OFF)),
];

fn selector(call: &str) -> Option<&'static Selector> {
    SELECTORS.iter().find(|selector| selector.call == call)
}

/// A system call: its number, and the operation if an argument selects one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) number: i64,
    which: Which,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Any,
    /// The selector's bits have this value.
    Selected(u64),
    /// The first argument is this descriptor of the test.
    First(u64),
}

impl Call {
    /// Returns the call with these arguments.
    pub(crate) fn made(number: i64, arguments: &[u64]) -> Self {
        let selector = names::name(number).and_then(selector);
        let which = selector.map_or(Which::Any, |selector| {
            let argument = arguments[usize::from(selector.argument)];
            // The kernel reads an `int`: the upper half of the register is undefined.
            let argument = if selector.call == "ioctl" { argument } else { argument & 0xffff_ffff };
            Which::Selected(argument & selector.mask)
        });
        Self { number, which }
    }

    /// Returns the call with any arguments.
    pub(crate) fn any(number: i64) -> Self {
        Self { number, which: Which::Any }
    }

    /// Returns the call with this first argument.
    pub(crate) fn with_first(name: &str, first: u64) -> Self {
        let number = names::number(name).expect("a system call");
        Self { number, which: Which::First(first) }
    }

    /// Returns the rule that matches the call; `None` if every call of the number matches.
    pub(crate) fn rule(&self) -> Option<SeccompRule> {
        let (argument, mask, value) = match self.which {
            Which::Any => return None,
            Which::First(value) => (0, !0, value),
            Which::Selected(value) => {
                let selector = names::name(self.number).and_then(selector);
                let selector = selector.expect("only such a call has one");
                (selector.argument, selector.mask, value)
            }
        };
        let (len, operator) = (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask & 0xffff_ffff));
        let condition = SeccompCondition::new(argument, len, operator, value);
        let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
        Some(rule.expect("an argument that calls have"))
    }
}

impl FromStr for Call {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, which) = match text.split_once('(') {
            Some((name, rest)) => {
                let which = rest.strip_suffix(')').ok_or_else(|| format!("'{text}' has no ')'"))?;
                (name, Some(which))
            }
            None => (text, None),
        };
        let number = match name.strip_prefix('#') {
            Some(number) => number.parse().map_err(|_| format!("'{name}' is not a number"))?,
            None => {
                names::number(name).ok_or_else(|| format!("there is no system call '{name}'"))?
            }
        };
        let which = match (selector(name), which) {
            (None, None) => Which::Any,
            (None, Some(which)) => {
                return Err(format!("'{name}' has no argument that selects '{which}'"));
            }
            (Some(_), None) => return Err(format!("'{name}' needs an argument: '{name}(…)'")),
            (Some(selector), Some(which)) => {
                let named = selector.values.iter().find(|value| value.0 == which);
                let value = named
                    .map(|value| value.1)
                    .or_else(|| u64::from_str_radix(which.strip_prefix("0x")?, 16).ok());
                Which::Selected(value.ok_or_else(|| format!("'{name}' has no '{which}'"))?)
            }
        };
        Ok(Self { number, which })
    }
}

/// Writes the call as the page does, and as `from_str` reads it.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (names::name(self.number), self.which) {
            (Some(name), Which::Any) if selector(name).is_none() => f.write_str(name),
            (_, Which::Any) => write!(f, "#{}", self.number),
            (name, Which::First(value)) => write!(f, "{}(fd {value})", name.unwrap_or("?")),
            (name, Which::Selected(value)) => {
                let name = name.unwrap_or("?");
                let known = selector(name).into_iter().flat_map(|selector| selector.values);
                match known.clone().find(|known| known.1 == value) {
                    Some((which, _)) => write!(f, "{name}({which})"),
                    None => write!(f, "{name}({value:#x})"),
                }
            }
        }
    }
}
