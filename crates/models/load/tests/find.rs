//! Models in directories and in the cache of the Hugging Face Hub.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use longshore_formats::Format;
use longshore_formats::directory::{DirectoryProblem, ModelFilter};
use longshore_load::{
    DigestKind, Error, FormatChoice, HubCache, HubName, HubProblem, Loader, Manifest, Opened,
    SourceFile, find_files, open,
};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use tempfile::TempDir;

/// Writes a safetensors file with one tensor of this name.
fn write_model(path: &Path, tensor: &str) {
    let content = tensor.as_bytes();
    let view = TensorView::new(Dtype::U8, vec![content.len()], content).unwrap();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, serialize([(tensor, view)], None).unwrap()).unwrap();
}

fn write_index(path: &Path, shards: &[(&str, &str)]) {
    let entries: Vec<String> =
        shards.iter().map(|(tensor, shard)| format!("{tensor:?}: {shard:?}")).collect();
    fs::write(path, format!("{{\"weight_map\": {{{}}}}}", entries.join(", "))).unwrap();
}

fn tensors(opened: &Opened) -> Vec<String> {
    opened.placed_tensors().map(|placed| placed.tensor.name.to_owned()).collect()
}

/// Makes the manifest of a file of the Hub.
fn of_hub(path: &Path) -> Result<Manifest, Error> {
    Manifest::of_hub([&SourceFile::open(path)?])
}

fn opened(path: &Path) -> Opened {
    open(&[path], FormatChoice::Auto).unwrap()
}

fn problem(path: &Path) -> DirectoryProblem {
    match open(&[path], FormatChoice::Auto) {
        Err(Error::Directory { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn names(files: &[PathBuf], directory: &Path) -> Vec<String> {
    let relative = |file: &PathBuf| file.strip_prefix(directory).unwrap().display().to_string();
    files.iter().map(relative).collect()
}

fn split(number: u32) -> PathBuf {
    let name = format!("split-0000{number}-of-00003.gguf");
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

#[test]
fn a_directory_stands_for_its_model() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("config.json"), "{}").unwrap();
    assert_eq!(problem(folder.path()), DirectoryProblem::NoModel { format: None, other: None });
    write_model(&at("consolidated.safetensors"), "consolidated");
    assert_eq!(tensors(&opened(folder.path())), ["consolidated"]);
    write_model(&at("b.safetensors"), "b");
    assert!(matches!(problem(folder.path()), DirectoryProblem::Several { count: 2, .. }));
    write_model(&at("model.safetensors"), "single");
    assert_eq!(tensors(&opened(folder.path())), ["single"]);
    write_model(&at("model-00001-of-00002.safetensors"), "one");
    write_model(&at("model-00002-of-00002.safetensors"), "two");
    let index =
        [("one", "model-00001-of-00002.safetensors"), ("two", "model-00002-of-00002.safetensors")];
    write_index(&at("model.safetensors.index.json"), &index);
    let all = opened(folder.path());
    assert_eq!(tensors(&all), ["one", "two"]);
    let loaded = Loader::new().load(&all.plan).unwrap();
    let place = all.placed_tensors().nth(1).unwrap().buffer_range;
    let content = loaded.buffer.read().unwrap();
    assert_eq!(&content[place.start as usize..place.end as usize], b"two");
}

#[test]
fn patterns_select_files_in_folders_and_open_each_once() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_model(&at("m-1.safetensors"), "one");
    write_index(&at("m.safetensors.index.json"), &[("one", "m-1.safetensors")]);
    write_model(&at("original/consolidated.safetensors"), "original");
    write_model(&at("a/b/c/deep.safetensors"), "deep");
    symlink("..", at("a/b/back")).unwrap();
    let find =
        |filter: ModelFilter| find_files(folder.path(), FormatChoice::Auto, &filter).unwrap();
    let files = find(ModelFilter::new().include("m*"));
    assert_eq!(names(&files, folder.path()), ["m.safetensors.index.json", "m-1.safetensors"]);
    assert_eq!(tensors(&open(&files, FormatChoice::Auto).unwrap()), ["one"]);
    let files = find(ModelFilter::new().include("original/*"));
    assert_eq!(names(&files, folder.path()), ["original/consolidated.safetensors"]);
    let files = find(ModelFilter::new().include("a/*"));
    assert_eq!(names(&files, folder.path()), ["a/b/c/deep.safetensors"]);
}

#[test]
fn splits_in_a_folder_are_found_by_their_variant() {
    let folder = TempDir::new().unwrap();
    for quantisation in ["Q4_K_M", "Q8_0"] {
        let into = folder.path().join(quantisation);
        fs::create_dir(&into).unwrap();
        for number in 1..=3 {
            let name = format!("m-{quantisation}-0000{number}-of-00003.gguf");
            fs::copy(split(number), into.join(name)).unwrap();
        }
    }
    fs::write(folder.path().join("mmproj-m.gguf"), "no model").unwrap();
    let filter = ModelFilter::new().variant("q8_0");
    let files = find_files(folder.path(), FormatChoice::Auto, &filter).unwrap();
    assert_eq!(names(&files, folder.path()), ["Q8_0/m-Q8_0-00001-of-00003.gguf"]);
    assert_eq!(open(&files, FormatChoice::Auto).unwrap().plan.files().len(), 3);
    fs::remove_file(folder.path().join("mmproj-m.gguf")).unwrap();
    assert!(matches!(problem(folder.path()), DirectoryProblem::Several { count: 2, .. }));
}

#[test]
fn the_only_folder_with_a_model_stands_for_the_directory() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_model(&at("llama/model.safetensors"), "llama");
    write_model(&at("llama/adapter_model.safetensors"), "adapter");
    fs::create_dir_all(at("logs/more")).unwrap();
    write_model(&at(".git/model.safetensors"), "hidden");
    assert_eq!(tensors(&opened(folder.path())), ["llama"]);
    // In each folder, another rule would select the model.
    write_model(&at("qwen/m-1.safetensors"), "qwen");
    write_index(&at("qwen/m.safetensors.index.json"), &[("qwen", "m-1.safetensors")]);
    let several = problem(folder.path()).to_string();
    assert!(
        several.contains("\"llama/model.safetensors\", \"qwen/m.safetensors.index.json\""),
        "{several}"
    );
    // A model in the directory itself comes first.
    write_model(&at("own.safetensors"), "own");
    assert_eq!(tensors(&opened(folder.path())), ["own"]);
}

#[test]
fn a_projector_does_not_stand_for_the_variant_of_a_model() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::copy(split(1), at("m-Q8_0.gguf")).unwrap();
    fs::copy(split(1), at("mmproj-BF16.gguf")).unwrap();
    fs::create_dir(at("BF16")).unwrap();
    let bf16 = || {
        let filter = ModelFilter::new().variant("BF16");
        find_files(folder.path(), FormatChoice::Auto, &filter)
    };
    assert!(matches!(
        bf16(),
        Err(Error::Directory { reason: DirectoryProblem::NoVariant { .. }, .. })
    ));
    fs::copy(split(1), at("BF16/m-BF16.gguf")).unwrap();
    assert_eq!(names(&bf16().unwrap(), folder.path()), ["BF16/m-BF16.gguf"]);
    fs::remove_file(at("m-Q8_0.gguf")).unwrap();
    fs::remove_dir_all(at("BF16")).unwrap();
    assert_eq!(names(&bf16().unwrap(), folder.path()), ["mmproj-BF16.gguf"]);
}

#[test]
fn a_filter_is_an_error_where_it_selects_nothing() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("model.safetensors");
    write_model(&file, "weights");
    for filter in [ModelFilter::new().variant("fp16"), ModelFilter::new().include("*")] {
        let refused = find_files(&file, FormatChoice::Auto, &filter);
        assert!(matches!(refused, Err(Error::Directory { reason: DirectoryProblem::File, .. })));
    }
}

#[test]
fn the_format_restricts_the_candidates() {
    let folder = TempDir::new().unwrap();
    write_model(&folder.path().join("model.safetensors"), "weights");
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/every_dtype.gguf");
    fs::copy(gguf, folder.path().join("m.gguf")).unwrap();
    let format = |choice| open(&[folder.path()], choice).unwrap().tensors[0].header.format();
    assert_eq!(format(FormatChoice::Auto), Format::Safetensors);
    assert_eq!(format(FormatChoice::Gguf), Format::Gguf);
    let raw = open(&[folder.path()], FormatChoice::Raw);
    assert!(matches!(raw, Err(Error::NotRegular { .. })), "{raw:?}");
}

#[test]
fn a_diffusers_model_is_its_components() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let index = r#"{"_class_name": "P", "vae": ["diffusers", "V"], "unet": ["diffusers", "U"],
        "tokenizer": ["transformers", "T"], "unused": [null, null]}"#;
    fs::write(at("model_index.json"), index).unwrap();
    write_model(&at("unet/diffusion_pytorch_model.safetensors"), "unet");
    write_model(&at("unet/diffusion_pytorch_model.fp16.safetensors"), "unet of fp16");
    write_model(&at("vae/diffusion_pytorch_model.safetensors"), "vae");
    write_model(&at("vae_1_0/diffusion_pytorch_model.safetensors"), "not a component");
    write_model(&at("all.safetensors"), "all in one file");
    fs::create_dir(at("tokenizer")).unwrap();
    fs::write(at("tokenizer/vocab.json"), "{}").unwrap();
    assert_eq!(tensors(&opened(folder.path())), ["unet", "vae"]);
    let of_variant = |variant: &str| {
        let filter = ModelFilter::new().variant(variant);
        find_files(folder.path(), FormatChoice::Auto, &filter)
    };
    let files = of_variant("fp16").unwrap();
    assert_eq!(tensors(&open(&files, FormatChoice::Auto).unwrap()), ["unet of fp16", "vae"]);
    let none = of_variant("bf16");
    let Err(Error::Directory { reason, .. }) = none else { panic!("{none:?}") };
    assert!(matches!(reason, DirectoryProblem::NoVariant { .. }), "{reason:?}");
    // A component that was not fetched.
    fs::remove_file(at("unet/diffusion_pytorch_model.safetensors")).unwrap();
    fs::remove_file(at("unet/diffusion_pytorch_model.fp16.safetensors")).unwrap();
    fs::write(at("unet/config.json"), "{}").unwrap();
    assert!(matches!(problem(folder.path()), DirectoryProblem::NoComponent { .. }));
    fs::remove_dir_all(at("unet")).unwrap();
    assert!(matches!(problem(folder.path()), DirectoryProblem::NoComponent { .. }));
    fs::write(at("model_index.json"), r#"{"vae": ["a", "b"], "../out": ["a", "b"]}"#).unwrap();
    assert!(problem(folder.path()).to_string().contains("its component \"../out\""));
    fs::write(at("model_index.json"), r#"{"vae": ["a", "b"]}"#).unwrap();
    assert_eq!(tensors(&opened(folder.path())), ["vae"]);
    // A component without safetensors would be missing.
    fs::remove_file(at("vae/diffusion_pytorch_model.safetensors")).unwrap();
    fs::write(at("vae/diffusion_pytorch_model.bin"), "pickle").unwrap();
    assert!(matches!(problem(folder.path()), DirectoryProblem::NoModel { other: Some(_), .. }));
    fs::write(at("model_index.json"), "[").unwrap();
    let broken = open(&[folder.path()], FormatChoice::Auto);
    assert!(matches!(broken, Err(Error::Format { format: Format::Pipeline, .. })), "{broken:?}");
}

#[test]
fn a_blob_is_recognised_by_its_content() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_model(&at("0f1e"), "weights");
    assert_eq!(tensors(&opened(&at("0f1e"))), ["weights"]);
    fs::copy(split(2), at("2d3c")).unwrap();
    assert_eq!(opened(&at("2d3c")).tensors[0].header.format(), Format::Gguf);
    fs::write(at("notes"), "0123456789").unwrap();
    assert_eq!(opened(&at("notes")).tensors.len(), 0);
    fs::write(at("short"), "GGU").unwrap();
    assert_eq!(opened(&at("short")).plan.len_bytes(), 3);
    // A file with an extension is what its name says.
    fs::copy(at("0f1e"), at("weights.bin")).unwrap();
    assert_eq!(opened(&at("weights.bin")).tensors.len(), 0);
    // A damaged model is not loaded as raw bytes.
    let whole = fs::read(at("0f1e")).unwrap();
    fs::write(at("cut"), &whole[..20]).unwrap();
    let cut = open(&[at("cut")], FormatChoice::Auto);
    assert!(matches!(cut, Err(Error::Format { format: Format::Safetensors, .. })), "{cut:?}");
}

#[test]
fn odd_directories_end_in_a_result() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("closed")).unwrap();
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    symlink("nowhere.safetensors", at("dangling.gguf")).unwrap();
    symlink(".", at("loop")).unwrap();
    let not_utf8 = std::ffi::OsStr::from_bytes(b"m\xff.safetensors");
    write_model(&folder.path().join(not_utf8), "weights");
    assert_eq!(tensors(&opened(folder.path())), ["weights"]);
    fs::remove_file(folder.path().join(not_utf8)).unwrap();
    let missing = open(&[folder.path()], FormatChoice::Auto);
    assert!(matches!(missing, Err(Error::Open { .. })), "{missing:?}");
    fs::remove_file(at("dangling.gguf")).unwrap();
    assert_eq!(problem(folder.path()), DirectoryProblem::NoModel { format: None, other: None });
}

/// Makes a cache with one repository, whose files are links to blobs.
fn cache(folder: &Path, commit: &str) -> HubCache {
    let repository = folder.join("models--org--name");
    let snapshot = repository.join("snapshots").join(commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("refs/refs/pr")).unwrap();
    fs::write(repository.join("refs/main"), commit).unwrap();
    fs::write(repository.join("refs/refs/pr/7"), commit).unwrap();
    fs::write(repository.join("refs/evil"), "../../../etc").unwrap();
    write_model(&repository.join("blobs/0f1e"), "weights");
    symlink("../../blobs/0f1e", snapshot.join("model.safetensors")).unwrap();
    HubCache::at(folder)
}

#[test]
fn a_repository_in_the_cache_is_found_by_branch_and_commit() {
    let folder = TempDir::new().unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let cache = cache(folder.path(), commit);
    let locate = |name: &str| cache.locate(&name.parse::<HubName>().unwrap());
    let snapshot = folder.path().join("models--org--name/snapshots").join(commit);
    for name in ["hf://org/name", "hf://org/name@main", "hf://org/name@refs/pr/7"] {
        assert_eq!(locate(name).unwrap(), snapshot, "{name}");
    }
    assert_eq!(locate(&format!("hf://org/name@{commit}")).unwrap(), snapshot);
    assert_eq!(tensors(&opened(&locate("hf://org/name").unwrap())), ["weights"]);
    // The directory of the repository stands for its main branch.
    assert_eq!(tensors(&opened(&folder.path().join("models--org--name"))), ["weights"]);
    let file = locate("hf://org/name/model.safetensors").unwrap();
    assert_eq!(file, snapshot.join("model.safetensors"));
    let reason = |name: &str| match locate(name) {
        Err(Error::Hub { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(matches!(reason("hf://org/other"), HubProblem::NotCached { .. }));
    assert!(matches!(reason("hf://datasets/org/name"), HubProblem::NotCached { .. }));
    assert!(matches!(reason("hf://org/name@v2"), HubProblem::NoRevision { .. }));
    let refs = folder.path().join("models--org--name/refs");
    // Files of `/proc` have no length, and can be endless, or wait.
    for (name, target) in [("map", "/proc/self/pagemap"), ("zero", "/dev/zero"), ("dir", ".")] {
        symlink(target, refs.join(name)).unwrap();
    }
    fs::write(refs.join("long"), commit.repeat(7)).unwrap();
    for name in ["evil", "map", "zero", "dir", "long"] {
        let reason = reason(&format!("hf://org/name@{name}"));
        assert!(matches!(reason, HubProblem::NoRevision { .. }), "{name}: {reason:?}");
    }
    assert!(matches!(reason("hf://org/name/x.gguf"), HubProblem::NoFile { .. }));
    let other = commit.replace('0', "f");
    assert!(matches!(reason(&format!("hf://org/name@{other}")), HubProblem::NoRevision { .. }));
}

#[test]
fn files_of_the_cache_are_verified_by_their_names() {
    let folder = TempDir::new().unwrap();
    let commit = "f".repeat(40);
    let cache = cache(folder.path(), &commit);
    let file = cache.locate(&"hf://org/name/model.safetensors".parse().unwrap()).unwrap();
    let unnamed = of_hub(&file).unwrap_err();
    assert!(unnamed.to_string().contains("model.safetensors"), "{unnamed}");
    // A large file is stored under its SHA-256 checksum.
    let opened = opened(&file);
    let loaded = Loader::new().digest(DigestKind::Sha256).load(&opened.plan).unwrap();
    let sum = loaded.files[0].digests[0].1.clone();
    let blobs = folder.path().join("models--org--name/blobs");
    let verified = |name: &str| {
        fs::rename(fs::canonicalize(&file).unwrap(), blobs.join(name)).unwrap();
        fs::remove_file(&file).unwrap();
        symlink(Path::new("../../blobs").join(name), &file).unwrap();
        let manifest = of_hub(&file).unwrap();
        Loader::new().manifest(&manifest).load(&opened.plan).map(drop)
    };
    verified(&sum).unwrap();
    let wrong = verified(&sum.replace(|_| true, "0")).unwrap_err();
    assert!(matches!(&wrong, Error::Mismatch { found, .. } if *found == sum), "{wrong}");
    assert!(of_hub(&folder.path().join("none")).is_err());
}

#[test]
fn a_name_without_an_organisation_may_have_a_file() {
    let folder = TempDir::new().unwrap();
    let commit = "f".repeat(40);
    let snapshot = folder.path().join("models--gpt2/snapshots").join(&commit);
    write_model(&snapshot.join("onnx/model.safetensors"), "weights");
    fs::create_dir_all(folder.path().join("models--gpt2/refs")).unwrap();
    fs::write(folder.path().join("models--gpt2/refs/main"), format!("{commit}\n")).unwrap();
    let cache = HubCache::at(folder.path());
    let locate = |name: &str| cache.locate(&name.parse::<HubName>().unwrap()).unwrap();
    assert_eq!(locate("hf://gpt2"), snapshot);
    assert_eq!(locate("hf://gpt2/onnx"), snapshot.join("onnx"));
    assert_eq!(locate("hf://gpt2/onnx/model.safetensors"), snapshot.join("onnx/model.safetensors"));
}
