//! Users and groups, from the sandbox's own files.
//!
//! Read again for each operation: a sandbox may add users at any time. Parsed by hand, because libc's lookups load
//! modules of the sandbox's choice into this process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use cove_protocol::{Failure, FailureKind};
use cove_sys::program::Identity;
use rustix::fs::{Mode, OFlags};

use crate::failure::{Result, invalid};

/// Longer files are cut: the sandbox's root can write what it likes into them.
const LONGEST: u64 = 1 << 20;

/// The kernel's own bound is 65,536; a sandbox does not need them.
const MOST_GROUPS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
    pub shell: String,
}

impl User {
    pub fn identity(&self) -> Identity {
        Identity { uid: self.uid, gid: self.gid, groups: Some(self.groups.clone()) }
    }

    /// A path as the user means it: `~` and relative paths are below the home.
    pub fn absolute(&self, path: &str) -> String {
        let home = self.home.trim_end_matches('/');
        match path {
            "" | "~" => if home.is_empty() { "/" } else { home }.to_owned(),
            absolute if absolute.starts_with('/') => absolute.to_owned(),
            relative => format!("{home}/{}", relative.strip_prefix("~/").unwrap_or(relative)),
        }
    }
}

#[derive(Debug, Default)]
pub struct Users {
    passwd: String,
    group: String,
}

struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl Users {
    pub fn load() -> Self {
        Users { passwd: contents("/etc/passwd"), group: contents("/etc/group") }
    }

    /// A name, a uid, `uid:gid` or `name:group`.
    pub fn find(&self, wanted: &str) -> Result<User> {
        let (who, group) = match wanted.split_once(':') {
            Some((who, group)) => (who, Some(group)),
            None => (wanted, None),
        };
        let account = self.accounts().find(|account| account.name == who);
        let account = account.or_else(|| {
            let uid = who.parse::<u32>().ok()?;
            self.accounts().find(|account| account.uid == uid)
        });
        let mut user = match (account, who.parse::<u32>()) {
            (Some(account), _) => self.user(&account),
            (None, Ok(uid)) if uid != u32::MAX => User {
                name: who.to_owned(),
                uid,
                gid: uid,
                groups: vec![uid],
                home: "/".to_owned(),
                shell: "/bin/sh".to_owned(),
            },
            // Every system has one, also an image that has no list of users.
            (None, _) if who == "root" => User {
                name: who.to_owned(),
                uid: 0,
                gid: 0,
                groups: vec![0],
                home: "/".to_owned(),
                shell: "/bin/sh".to_owned(),
            },
            _ => {
                let message = format!("user {who:?} is not in the sandbox's /etc/passwd");
                return Err(Failure::new(FailureKind::UnknownUser, message));
            }
        };
        if let Some(group) = group {
            user.gid = self.group_id(group)?;
            if !user.groups.contains(&user.gid) {
                user.groups.push(user.gid);
            }
        }
        Ok(user)
    }

    /// The uid that a name or number means.
    pub fn user_id(&self, wanted: &str) -> Result<u32> {
        self.find(wanted).map(|user| user.uid)
    }

    /// The gid that a name or number means.
    pub fn group_id(&self, wanted: &str) -> Result<u32> {
        if let Some(group) = self.groups().find(|group| group.name == wanted) {
            return Ok(group.gid);
        }
        match wanted.parse::<u32>() {
            Ok(gid) if gid != u32::MAX => Ok(gid),
            Ok(_) => Err(invalid(format!("group {wanted} is not a valid number"))),
            Err(_) => {
                let message = format!("group {wanted:?} is not in the sandbox's /etc/group");
                Err(Failure::new(FailureKind::UnknownUser, message))
            }
        }
    }

    pub fn names(&self) -> Names<'_> {
        // Of several names for one number the first counts, as for every program (getpwuid(3)).
        let mut names = Names::default();
        for account in self.accounts() {
            names.users.entry(account.uid).or_insert(account.name);
        }
        for group in self.groups() {
            names.groups.entry(group.gid).or_insert(group.name);
        }
        names
    }

    fn user(&self, account: &Account<'_>) -> User {
        let mut groups = vec![account.gid];
        for group in self.groups() {
            if groups.len() < MOST_GROUPS
                && group.members.split(',').any(|member| member.trim() == account.name)
                && !groups.contains(&group.gid)
            {
                groups.push(group.gid);
            }
        }
        User {
            name: account.name.to_owned(),
            uid: account.uid,
            gid: account.gid,
            groups,
            home: if account.home.starts_with('/') { account.home } else { "/" }.to_owned(),
            shell: if account.shell.is_empty() { "/bin/sh" } else { account.shell }.to_owned(),
        }
    }

    fn accounts(&self) -> impl Iterator<Item = Account<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = fields.nth(1)?;
            Some(Account { name, uid, gid, home, shell: fields.next().unwrap_or_default() })
        })
    }

    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some(Group { name, gid, members: fields.next().unwrap_or_default() })
        })
    }
}

/// Names by number, for listings.
#[derive(Default)]
pub struct Names<'a> {
    users: BTreeMap<u32, &'a str>,
    groups: BTreeMap<u32, &'a str>,
}

impl Names<'_> {
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).map_or_else(|| uid.to_string(), |name| (*name).to_owned())
    }

    pub fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).map_or_else(|| gid.to_string(), |name| (*name).to_owned())
    }
}

fn contents(path: &str) -> String {
    let mut bytes = Vec::new();
    // A pipe would keep everybody waiting for its writer, and an image or the sandbox's root can put one there.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(File::from)
        && file.metadata().is_ok_and(|told| told.is_file())
    {
        // Uses what can be read; a missing file counts as empty.
        let _ = file.take(LONGEST).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox() -> Users {
        Users {
            passwd: "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:\nbroken\n#off:x:1:1::/:\n".into(),
            group: "root:x:0:\nuser:x:1000:\ndocker:x:990:ann,user\nbad:x:no:user\n".into(),
        }
    }

    #[test]
    fn a_pipe_in_place_of_a_list_keeps_nobody_waiting() {
        let path = std::env::temp_dir().join(format!("cove-users-{}", std::process::id()));
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(contents(path.to_str().unwrap()), "");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "root:x:0:0::/:/bin/sh").unwrap();
        assert_eq!(contents(path.to_str().unwrap()), "root:x:0:0::/:/bin/sh");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number_with_its_groups() {
        let by_name = sandbox().find("user").unwrap();
        assert_eq!((by_name.uid, by_name.gid, by_name.groups.as_slice()), (1000, 1000, [1000, 990].as_slice()));
        assert_eq!((by_name.home.as_str(), by_name.shell.as_str()), ("/home/user", "/bin/sh"));
        assert_eq!(sandbox().find("1000").unwrap(), by_name);
    }

    #[test]
    fn a_number_without_a_name_gets_no_other_group_than_its_own() {
        let user = sandbox().find("4321").unwrap();
        assert_eq!(
            (user.uid, user.gid, user.groups.as_slice(), user.home.as_str()),
            (4321, 4321, [4321].as_slice(), "/")
        );
        let user = sandbox().find("4321:990").unwrap();
        assert_eq!((user.uid, user.gid), (4321, 990));
        assert_eq!(sandbox().find("user:docker").unwrap().gid, 990);
    }

    #[test]
    fn of_two_names_for_one_number_the_first_is_shown() {
        let mut users = sandbox();
        users.passwd.push_str("other:x:1000:1000::/home/other:\n");
        users.group.push_str("others:x:1000:\n");
        assert_eq!((users.names().user(1000).as_str(), users.names().group(1000).as_str()), ("user", "user"));
        assert_eq!(users.find("other").unwrap().home, "/home/other");
    }

    #[test]
    fn root_needs_no_list_of_users() {
        let root = Users::default().find("root").unwrap();
        assert_eq!((root.uid, root.gid, root.home.as_str()), (0, 0, "/"));
        assert_eq!(sandbox().find("root").unwrap().home, "/root", "the list counts where there is one");
    }

    #[test]
    fn a_stranger_is_not_found_by_name() {
        assert_eq!(sandbox().find("mallory").unwrap_err().kind, FailureKind::UnknownUser);
        assert_eq!(sandbox().find("user:nobody").unwrap_err().kind, FailureKind::UnknownUser);
        assert!(sandbox().find("4294967295").is_err());
        assert!(sandbox().find("").is_err());
    }
}
