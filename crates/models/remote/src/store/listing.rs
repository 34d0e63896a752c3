//! A prefix of an object store as a directory.

use std::collections::HashMap;
use std::sync::Arc;

use longshore_formats::directory::Directory;
use longshore_mem::VolatileSliceMut;
use object_store::ListResult;

use super::{LISTED_MAX_BYTES, ObjectName, Store};
use crate::http::{HttpError, HttpFile, Limits};

/// The limit on the number of folders that are listed for one model.
const FOLDERS_MAX: usize = 1000;
/// The limit on the names in all of them.
const NAMES_MAX: usize = 200_000;

/// The objects below a prefix.
pub(crate) struct Listing<'a> {
    store: &'a Arc<Store>,
    prefix: &'a ObjectName,
    limits: &'a Limits<'a>,
    listed: HashMap<String, ListResult>,
    names: usize,
    left_bytes: usize,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(
        store: &'a Arc<Store>,
        prefix: &'a ObjectName,
        limits: &'a Limits<'a>,
    ) -> Self {
        Self {
            store,
            prefix,
            limits,
            listed: HashMap::new(),
            names: 0,
            left_bytes: LISTED_MAX_BYTES,
        }
    }

    fn listed(&mut self, folder: &str) -> Result<&ListResult, HttpError> {
        if !self.listed.contains_key(folder) {
            if self.listed.len() >= FOLDERS_MAX {
                let text = format!("there are more than {FOLDERS_MAX} folders");
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text).into());
            }
            let listed = self.store.list(&self.key(folder), &mut self.left_bytes, self.limits)?;
            self.names += listed.objects.len() + listed.common_prefixes.len();
            if self.names > NAMES_MAX {
                let text = format!("there are more than {NAMES_MAX} names below this prefix");
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text).into());
            }
            self.listed.insert(folder.to_owned(), listed);
        }
        Ok(&self.listed[folder])
    }

    fn key(&self, folder: &str) -> String {
        match folder {
            "" => self.prefix.key.clone(),
            folder => self.prefix.below(folder).key,
        }
    }
}

impl Directory for Listing<'_> {
    type Error = HttpError;

    fn files(&mut self, folder: &str) -> Result<Vec<String>, HttpError> {
        let listed = self.listed(folder)?;
        let names = listed.objects.iter().filter_map(|object| object.location.filename());
        Ok(names.map(str::to_owned).collect())
    }

    fn folders(&mut self, folder: &str) -> Result<Vec<String>, HttpError> {
        let listed = self.listed(folder)?;
        let names = listed.common_prefixes.iter().filter_map(|prefix| prefix.filename());
        let mut names: Vec<_> =
            names.filter(|name| !name.starts_with('.')).map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn read(&mut self, file: &str, max_bytes: u64) -> Result<Vec<u8>, HttpError> {
        let requests = Arc::new(self.store.requests(&self.prefix.below(file).key)?);
        let opened = HttpFile::open(&self.store.client, requests, self.limits)?;
        if opened.len() > max_bytes {
            let text = format!("{file} has more than {max_bytes} bytes");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text).into());
        }
        let mut bytes = vec![0; opened.len() as usize];
        opened.read(&mut VolatileSliceMut::from(bytes.as_mut_slice()), 0, self.limits)?;
        Ok(bytes)
    }
}
