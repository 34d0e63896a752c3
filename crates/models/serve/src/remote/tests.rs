use std::collections::BTreeMap;
use std::sync::Mutex;

use longshore_load::{
    Error as LoadError, FormatChoice, Object, ObjectError, ReadControl, SourceFile,
};
use longshore_mem::VolatileSliceMut;

use super::*;

const AUTO: Layout = Layout { format: FormatChoice::Auto, align: None };

/// A content and its version.
type File = (Vec<u8>, Option<&'static str>);

/// Files of a server, by their names, with their versions.
#[derive(Debug, Default)]
struct Store {
    files: Mutex<BTreeMap<String, File>>,
    /// The names that were opened.
    opened: Mutex<Vec<String>>,
    /// The time limits of the sessions.
    limits: Mutex<Vec<Option<Duration>>>,
}

#[derive(Debug)]
struct Stored(Vec<u8>, Option<&'static str>);

impl Object for Stored {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn version(&self) -> Option<&str> {
        self.1
    }

    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        _: &dyn ReadControl,
    ) -> std::result::Result<(), ObjectError> {
        let at = offset as usize;
        let written = memory.write(0, &self.0[at..at + memory.len()]);
        written.map_err(|error| ObjectError::Failed(error.into()))
    }
}

#[derive(Debug)]
struct Access(Arc<Store>);

struct Session(Arc<Store>);

impl RemoteAccess for Access {
    fn session(&self, _: &CancelToken, time_limit: Option<Duration>) -> Box<dyn RemoteSession> {
        self.0.limits.lock().unwrap().push(time_limit);
        Box::new(Session(Arc::clone(&self.0)))
    }
}

impl RemoteSession for Session {
    fn find_files(
        &self,
        source: &Path,
        _: FormatChoice,
        filter: &ModelFilter,
    ) -> longshore_load::Result<Vec<PathBuf>> {
        let text = source.to_str().unwrap();
        Ok(match text.strip_suffix('/') {
            Some(_) if text.ends_with("/outside/") => vec!["s3://b/x.bin".into()],
            Some(_) if filter.is_empty() => vec![format!("{text}i.safetensors.index.json").into()],
            Some(_) => vec![format!("{text}other.bin").into()],
            None => vec![source.to_owned()],
        })
    }

    fn open(&self, path: &Path) -> longshore_load::Result<SourceFile> {
        let text = path.to_str().unwrap().to_owned();
        self.0.opened.lock().unwrap().push(text.clone());
        let files = self.0.files.lock().unwrap();
        let Some((content, version)) = files.get(&text) else {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(LoadError::Open { path: path.to_owned(), source });
        };
        let object = Arc::new(Stored(content.clone(), *version));
        Ok(SourceFile::from_object(text.split('?').next().unwrap_or_default(), object))
    }
}

impl Store {
    fn put(&self, name: &str, content: &[u8], version: Option<&'static str>) {
        self.files.lock().unwrap().insert(name.to_owned(), (content.to_vec(), version));
    }

    fn take_opened(&self) -> Vec<String> {
        std::mem::take(&mut self.opened.lock().unwrap())
    }
}

/// A server of these roots and models.
fn served(roots: &[&str], models: &[&str]) -> (Arc<Store>, RemoteServed) {
    let store = Arc::new(Store::default());
    let mut options = RemoteOptions::new(Arc::new(Access(Arc::clone(&store))));
    options.roots = roots.iter().map(|it| (*it).to_owned()).collect();
    options.models = models.iter().map(|it| (*it).to_owned()).collect();
    options = options.filter(ModelFilter::new().variant("other"));
    let served = RemoteServed::new(&options).unwrap();
    (store, served)
}

fn look(served: &RemoteServed, name: &str, known: Option<&Found>) -> longshore_load::Result<Found> {
    let known = known.and_then(|known| known.remote.as_ref());
    served.found(Path::new(name), AUTO, known, &CancelToken::new())
}

/// A safetensors file of one tensor.
fn safetensors(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"abc"].concat()
}

#[test]
fn equal_versions_are_one_model_and_files_without_a_version_never_are() {
    let (store, served) = served(&["s3://b/"], &[]);
    store.put("s3://b/m.bin", b"content", Some("1"));
    store.put("s3://b/u.bin", b"content", None);
    let one = look(&served, "s3://b/m.bin", None).unwrap();
    assert!(one.is_same(&look(&served, "s3://b/m.bin", None).unwrap()));
    assert!(one.is_same(&look(&served, "s3://b/m.bin", Some(&one)).unwrap()));
    store.put("s3://b/m.bin", b"CONTENT", Some("2"));
    let changed = look(&served, "s3://b/m.bin", Some(&one)).unwrap();
    assert!(!one.is_same(&changed) && one.is_as(&changed));
    let error = served.plan(&one, &CancelToken::new()).unwrap_err();
    assert!(matches!(error, LoadError::Changed { .. }), "{error}");
    assert_eq!(served.plan(&changed, &CancelToken::new()).unwrap().len_bytes(), 7);
    let unversioned = look(&served, "s3://b/u.bin", None).unwrap();
    assert!(!unversioned.is_same(&unversioned.clone()));
    // Except at a commit of the Hub.
    let (hub, served_hub) = self::served(&["hf://org"], &[]);
    for (revision, is_same) in [("0123456789abcdef0123456789abcdef01234567", true), ("main", false)]
    {
        let name = format!("hf://org/name@{revision}/m.bin");
        hub.put(&name, b"content", None);
        let found = look(&served_hub, &name, None).unwrap();
        assert_eq!(found.is_same(&look(&served_hub, &name, None).unwrap()), is_same, "{name}");
    }
    // Neither are two files with the same version.
    store.put("s3://b/other.bin", b"content", Some("1"));
    assert!(!one.is_same(&look(&served, "s3://b/other.bin", None).unwrap()));
}

#[test]
fn a_model_in_memory_is_compared_with_its_index_and_all_shards() {
    let (store, served) = served(&["s3://b/m/"], &[]);
    let index = br#"{"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#;
    store.put("s3://b/m/i.safetensors.index.json", index, Some("1"));
    store.put("s3://b/m/a.safetensors", &safetensors("a"), Some("1"));
    store.put("s3://b/m/b.safetensors", &safetensors("b"), Some("1"));
    let one = look(&served, "s3://b/m/", None).unwrap();
    assert_eq!(one.files.len(), 2);
    store.take_opened();
    let again = look(&served, "s3://b/m/", Some(&one)).unwrap();
    assert!(one.is_same(&again));
    assert_eq!(store.take_opened().len(), 3);
    store.put("s3://b/m/b.safetensors", &safetensors("b"), Some("2"));
    assert!(!one.is_same(&look(&served, "s3://b/m/", Some(&one)).unwrap()));
    // An index that names other files is another model, also if the shards did not change.
    let one = look(&served, "s3://b/m/", None).unwrap();
    store.put("s3://b/m/a2.safetensors", &safetensors("a"), Some("1"));
    let index = br#"{"weight_map":{"a":"a2.safetensors","b":"b.safetensors"}}"#;
    store.put("s3://b/m/i.safetensors.index.json", index, Some("2"));
    assert!(!one.is_same(&look(&served, "s3://b/m/", Some(&one)).unwrap()));
}

#[test]
fn no_file_outside_of_the_root_is_opened() {
    let (store, served) = served(&["s3://b/m/"], &[]);
    for name in ["s3://b/x.bin", "s3://b/m/../x.bin", "/etc/passwd", "https://host/x"] {
        assert!(served.permitted_name(name).is_err(), "{name}");
        let error = look(&served, name, None).unwrap_err();
        assert!(matches!(error, LoadError::Refused { .. }), "{error}");
    }
    // Nor if the access returns such a file.
    for shard in ["../x.safetensors", "s3://b/x.safetensors", "/etc/passwd.safetensors"] {
        let index = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
        store.put("s3://b/m/i.safetensors.index.json", index.as_bytes(), Some("1"));
        look(&served, "s3://b/m/", None).unwrap_err();
    }
    store.put("s3://b/x.bin", b"content", Some("1"));
    let error = look(&served, "s3://b/m/outside/", None).unwrap_err();
    assert!(matches!(error, LoadError::Refused { .. }), "{error}");
    let opened = store.take_opened();
    assert!(opened.iter().all(|name| name.starts_with("s3://b/m/")), "{opened:?}");
}

#[test]
fn a_model_of_the_start_has_the_filter_and_serves_nothing_else() {
    let (store, served) = served(&[], &["s3://b/m/"]);
    store.put("s3://b/m/other.bin", b"content", Some("1"));
    let found = look(&served, "s3://b/m/", None).unwrap();
    assert_eq!(found.files[0].0, Path::new("s3://b/m/other.bin"));
    assert!(served.permitted_name("s3://b/m/other.bin").is_err());
    assert_eq!(served.models().collect::<Vec<_>>(), [Path::new("s3://b/m/")]);
}

#[test]
fn lookups_have_a_time_limit_and_loads_that_of_the_options() {
    for (limit, of_look) in
        [(None, LOOK_TIME), (Some(Duration::from_secs(1)), Duration::from_secs(1))]
    {
        let (store, mut served) = served(&["s3://b/"], &[]);
        served.time_limit = limit;
        store.put("s3://b/m.bin", b"content", Some("1"));
        let found = look(&served, "s3://b/m.bin", None).unwrap();
        served.plan(&found, &CancelToken::new()).unwrap();
        assert_eq!(*store.limits.lock().unwrap(), [Some(of_look), limit]);
    }
}

#[test]
fn a_model_with_too_many_files_is_refused() {
    let (store, served) = served(&["s3://b/m/"], &[]);
    let map: Vec<String> = (0..300).map(|at| format!(r#""t{at}":"{at}.safetensors""#)).collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
    store.put("s3://b/m/i.safetensors.index.json", index.as_bytes(), Some("1"));
    let error = look(&served, "s3://b/m/", None).unwrap_err();
    assert!(matches!(error, LoadError::Refused { .. }), "{error}");
    assert_eq!(store.take_opened().len(), 1);
}
