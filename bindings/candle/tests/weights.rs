//! Tensors of files of each type, compared with candle's own reader; bad files; shared memory.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use longshore::CancelToken;
use longshore::load::FormatChoice;
use longshore::serve::{Client, Listener, Options, Server, Stop, Wanted};
use longshore_candle::{Error, Weights};

/// A tensor of a file: name, type, shape, length in bytes.
type Spec<'a> = (&'a str, &'a str, &'a [u64], usize);

/// Writes a safetensors file whose data bytes count up.
fn write(path: &Path, tensors: &[Spec<'_>]) {
    let (mut header, mut end) = (String::from("{"), 0);
    for (index, (name, dtype, shape, len_bytes)) in tensors.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let range = [end, end + len_bytes];
        write!(
            header,
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{range:?}}}"#
        )
        .unwrap();
        end += len_bytes;
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend((0..end).map(|at| at as u8));
    std::fs::write(path, file).unwrap();
}

fn file(tensors: &[Spec<'_>]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, tensors);
    (folder, path)
}

#[test]
fn tensors_of_each_type_equal_those_of_candles_own_reader() {
    let types: [Spec<'_>; 10] = [
        ("a", "U8", &[3], 3),
        // Not aligned to its elements.
        ("b", "F32", &[2, 3], 24),
        ("c", "F16", &[5], 10),
        ("d", "BF16", &[1, 1, 2], 4),
        ("e", "F64", &[], 8),
        ("f", "I64", &[2], 16),
        ("g", "U32", &[2], 8),
        ("h", "F8_E4M3", &[4], 4),
        ("i", "U16", &[3], 6),
        ("j", "I32", &[0, 4], 0),
    ];
    let (folder, path) = file(&types);
    let weights = Weights::load(&[&path]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let theirs = candle_core::safetensors::SliceSafetensors::new(&bytes).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), types.map(|(name, ..)| name));
    for (name, ..) in types {
        let ours = weights.tensor(name, &Device::Cpu).unwrap();
        let theirs = theirs.load(name, &Device::Cpu).unwrap();
        assert_eq!((ours.dtype(), ours.shape()), (theirs.dtype(), theirs.shape()), "{name}");
        let saved = [ours, theirs].map(|tensor| {
            let path = folder.path().join("saved");
            tensor.save_safetensors(name, &path).unwrap();
            std::fs::read(path).unwrap()
        });
        assert_eq!(saved[0], saved[1], "{name}");
    }
}

#[test]
fn a_builder_converts_types_and_refuses_other_shapes_and_names() {
    let (_folder, path) = file(&[("x", "F16", &[2, 2], 8), ("y", "C64", &[1], 8)]);
    let builder = Weights::load(&[path]).unwrap().var_builder(DType::F32, &Device::Cpu);
    assert_eq!(builder.get((2, 2), "x").unwrap().dtype(), DType::F32);
    assert!(builder.contains_tensor("x") && !builder.contains_tensor("z"));
    let message = |refused: candle_core::Result<_>| refused.unwrap_err().to_string();
    let refused: String = message(builder.get((4,), "x"));
    assert!(refused.contains("shape mismatch for x"), "{refused}");
    assert!(message(builder.get((1,), "z")).contains("cannot find tensor z"));
    let refused = message(builder.get((1,), "y"));
    assert!(refused.contains("tensor y has the type C64, which candle lacks"), "{refused}");
}

#[test]
fn one_name_in_two_files_is_an_error() {
    let (folder, path) = file(&[("x", "U8", &[1], 1)]);
    let other = folder.path().join("other.safetensors");
    write(&other, &[("x", "U8", &[1], 1)]);
    let refused = Weights::load(&[path, other.clone()]).unwrap_err();
    assert!(matches!(&refused, Error::Duplicate { name, path } if name == "x" && *path == other));
}

#[test]
fn a_damaged_or_missing_file_is_an_error() {
    let (folder, path) = file(&[("x", "U8", &[9], 9)]);
    let len_bytes = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(len_bytes - 1).unwrap();
    for path in [path, folder.path().join("absent.safetensors")] {
        assert!(matches!(Weights::load(&[path]), Err(Error::Load(_))));
    }
}

#[test]
fn an_attached_model_has_the_same_tensors_and_takes_no_second_copy() {
    let (folder, path) = file(&[("x", "F32", &[2], 8), ("y", "U8", &[1], 1)]);
    let socket = folder.path().join("serve.sock");
    let stop = Stop::new().unwrap();
    let options = Options::new().root(folder.path());
    let listener = Listener::bind(&socket, 0o600).unwrap();
    let server = Server::new(listener, options, stop.clone()).unwrap();
    let server = std::thread::spawn(move || server.run(|_| ()));

    let client = Client::connect(Some(&socket), &CancelToken::new()).unwrap();
    let wanted = Wanted::Path(path.clone());
    let attachment = client.attach(&wanted, FormatChoice::Auto, &mut |_| ()).unwrap();
    let weights = Weights::from_attachment(attachment).unwrap();
    stop.stop();
    server.join().unwrap().unwrap();

    // The memory outlives the server.
    assert_eq!(weights.as_slice(), std::fs::read(&path).unwrap());
    let loaded = Weights::load(&[path]).unwrap();
    for name in ["x", "y"] {
        let [a, b] = [&weights, &loaded].map(|weights| {
            let tensor = weights.tensor(name, &Device::Cpu).unwrap();
            tensor.to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
        });
        assert_eq!(a, b);
    }
}
