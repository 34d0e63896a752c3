//! The paths by which clients asked for a model.
//!
//! Several paths can lead to the same files, and each client is answered with the path that it asked
//! for. If one of them is removed or leads elsewhere, the model is not stale for the others.

use std::collections::VecDeque;
use std::sync::Arc;

use super::users::User;
use crate::served::Found;

/// How many paths of one user are remembered for a model, so that the paths of one user do not
/// displace those of another.
const NAMES_PER_USER_MAX: usize = 4;

/// The paths by which a model was asked for, oldest first. They keep no inodes in use.
#[derive(Debug, Default)]
pub(super) struct Names(VecDeque<(User, Arc<Found>)>);

impl Names {
    /// Remembers the paths by which a user asked for the model.
    pub(super) fn remember(&mut self, user: User, found: Arc<Found>) {
        self.0.retain(|(of, name)| !(*of == user && name.is_as(&found)));
        self.0.push_back((user, found));
        let of_user = |(of, _): &(User, Arc<Found>)| *of == user;
        if self.0.iter().filter(|name| of_user(name)).count() > NAMES_PER_USER_MAX
            && let Some(oldest) = self.0.iter().position(of_user)
        {
            self.0.remove(oldest);
        }
    }

    /// Forgets paths that lead to another version of the files now.
    pub(super) fn forget(&mut self, found: &Found) {
        self.0.retain(|(_, name)| !name.is_as(found));
    }

    /// Takes the paths that were remembered first, and the user that gave them.
    pub(super) fn take_first(&mut self) -> Option<(User, Arc<Found>)> {
        self.0.pop_front()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(User, Arc<Found>)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longshore_load::FormatChoice;

    use super::*;
    use crate::served::Layout;

    #[test]
    fn the_paths_of_one_user_are_bounded_and_displace_none_of_another() {
        let layout = Layout { format: FormatChoice::Auto, align: None };
        let found = |path: &str| {
            let path = Path::new(path).to_owned();
            let files = Vec::new();
            Arc::new(Found { path, layout, files, len_bytes: 1, inodes: None, remote: None })
        };
        let (alice, mallory) = (User::limited(1), User::limited(2));
        let mut names = Names::default();
        names.remember(alice, found("/alice"));
        names.remember(alice, found("/alice"));
        for number in 0..100 {
            names.remember(mallory, found(&format!("/{number}")));
        }
        let paths = |names: &Names| -> Vec<String> {
            names.iter().map(|(_, name)| name.path.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(paths(&names), ["/alice", "/96", "/97", "/98", "/99"]);
        names.forget(&found("/97"));
        assert_eq!(names.take_first().unwrap().1.path, Path::new("/alice"));
        assert_eq!(paths(&names), ["/96", "/98", "/99"]);
    }
}
