//! Limits on the work for one model, so that its owner cannot keep a publisher of other models busy.

mod place;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_load::{Error, PublishProblem, Published, SourceState};
use place::{Place, safetensors, with_tmpfs};

fn reason(result: Result<Published, Error>) -> PublishProblem {
    match result.unwrap_err() {
        Error::Publish { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// Returns the processor time that this thread spends on some work, which other programs do not change. Tests
/// compare it with that of other work on as many files: if it grows with the square of their number, it is
/// many times as long.
fn measured(work: impl FnOnce()) -> Duration {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let began = now();
    work();
    now() - began
}

/// Writes an index that names these shards.
fn write_index(place: &Place, shards: impl IntoIterator<Item = String>) -> PathBuf {
    let shards = shards.into_iter().enumerate();
    let map: serde_json::Map<_, _> =
        shards.map(|(number, shard)| (number.to_string(), shard.into())).collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    place.write("model/model.safetensors.index.json", index.to_string().as_bytes())
}

#[test]
fn many_files_are_closed_beside_many_new_directories() {
    with_tmpfs("size=64m", |place| {
        let source = place.source("model");
        let deep: PathBuf = (1..=15).map(|level| level.to_string()).collect();
        fs::create_dir_all(source.join(&deep)).unwrap();
        for number in 0..2_000 {
            File::create(source.join(&deep).join(number.to_string())).unwrap();
        }
        let of_publishing = measured(|| drop(place.publish(&source).unwrap()));
        fs::remove_dir_all(source.join("1")).unwrap();
        place.write("model/config.json", b"{}");
        for number in 0..3_000 {
            fs::create_dir(source.join(format!("{number:0>250}"))).unwrap();
        }
        let of_closing = measured(|| place.publisher().update_access(&source).unwrap());
        assert!(of_closing < of_publishing * 2, "{of_closing:?}, {of_publishing:?}");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let copy = place.tmpfs.join("model");
        for folder in deep.ancestors().filter(|it| !it.as_os_str().is_empty()) {
            assert_eq!(mode(&copy.join(folder)), 0o700, "{folder:?}");
        }
        assert_eq!(mode(&copy.join(&deep).join("1999")), 0o400);
    });
}

#[test]
fn an_index_may_name_many_shards() {
    with_tmpfs("size=64m", |place| {
        let first = place.write("model/first", &safetensors(8));
        let name = |number| format!("{number:0>243}.safetensors");
        for number in 0..9_900 {
            fs::hard_link(&first, place.source("model").join(name(number))).unwrap();
        }
        let index = write_index(place, (0..9_900).map(name));
        let list = |source: &Path| measured(|| drop(SourceState::of(source).unwrap()));
        let (of_directory, of_index) = (list(&place.source("model")), list(&index));
        assert!(of_index < of_directory * 6, "{of_index:?}, {of_directory:?}");
    });
}

#[test]
fn the_links_of_a_model_are_limited_together() {
    with_tmpfs("size=64m", |place| {
        let source = place.source("model");
        place.write("model/link0", b"{}");
        for number in 1..40 {
            let target = format!("link{}", number - 1);
            symlink(target, source.join(format!("link{number}"))).unwrap();
        }
        let link = |name: String| symlink("link39", source.join(name)).unwrap();
        (0..100).map(|number| format!("model{number}")).for_each(link);
        place.publish(&source).unwrap();
        (100..500).map(|number| format!("model{number}")).for_each(link);
        let refused = reason(place.publisher().replace(true).publish(&source));
        assert!(matches!(refused, PublishProblem::TooManyLinks { .. }), "{refused}");
    });
}

#[test]
fn headers_are_checked_once_for_each_file_and_ending() {
    with_tmpfs("size=8m", |place| {
        let len_bytes = 50_usize << 20;
        let mut header = (len_bytes as u64).to_le_bytes().to_vec();
        header.extend_from_slice(b"{}");
        header.resize(8 + len_bytes, b' ');
        let first = place.write("model/0.safetensors", &header);
        for name in 1..25 {
            fs::hard_link(&first, place.source(&format!("model/{name}.safetensors"))).unwrap();
        }
        // A directory with several models, whose headers together are longer than those of one may be.
        place.write("model/other.safetensors", &header);
        place.write("model/third.safetensors", &header);
        let source = place.source("model");
        assert!(matches!(reason(place.publish(&source)), PublishProblem::NoRoom { .. }));
        fs::hard_link(&first, source.join("0.gguf")).unwrap();
        let refused = place.publish(&source).unwrap_err();
        assert!(matches!(refused, Error::Format { .. }), "{refused}");
    });
}

#[test]
fn an_index_names_no_files_of_a_published_model() {
    with_tmpfs("size=8m", |place| {
        for name in [".longshore.json", ".longshore.pinned"] {
            place.write(&format!("model/{name}"), &safetensors(8));
            let index = write_index(place, [name.to_owned()]);
            assert_eq!(reason(place.publish(&index)), PublishProblem::ReservedName, "{name}");
        }
        // In a directory, they are those of a model that is published again.
        place.publish(&place.source("model")).unwrap();
    });
}
