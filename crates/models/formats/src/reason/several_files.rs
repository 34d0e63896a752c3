//! Reasons why the files of one model do not fit together.

use crate::quoted::QuotedName;

/// A contradiction between an index and its shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardProblem {
    /// A shard has a name that no shard may have.
    #[error("the shard name {name} {problem}")]
    BadName {
        /// The name.
        name: QuotedName,
        /// The problem.
        problem: ShardNameProblem,
    },
    /// Another number of headers was given than the index has shards.
    #[error("it has {shards} shards, and {given} headers were given")]
    HeaderCount {
        /// The number of shards.
        shards: usize,
        /// The number of headers.
        given: usize,
    },
    /// A tensor is in two shards.
    #[error("tensor {tensor} is in two shards, {first} and {second}")]
    TensorTwice {
        /// The tensor.
        tensor: QuotedName,
        /// The first shard.
        first: QuotedName,
        /// The second shard.
        second: QuotedName,
    },
    /// A tensor is not in the shard that the index names.
    #[error(
        "tensor {tensor} is not in the shard {shard} that it names, {}; are the shards and the index \
         of the same version?", instead(found.as_ref())
    )]
    OtherShard {
        /// The tensor.
        tensor: QuotedName,
        /// The shard that the index names.
        shard: QuotedName,
        /// The shard that has the tensor, if there is one.
        found: Option<QuotedName>,
    },
    /// The tensors of all shards have another length than the index declares.
    #[error(
        "it says that the tensors have {total_size_bytes} bytes, but in the shards they have \
         {found_bytes}; name the shards one by one to load them as they are"
    )]
    TotalSize {
        /// The length that the index declares.
        total_size_bytes: u64,
        /// The length that the tensors have at least.
        found_bytes: u128,
    },
}

fn instead(found: Option<&QuotedName>) -> String {
    found.map_or("nor in any other".to_owned(), |other| format!("but in {other}"))
}

/// Why a shard may not have a name: it must be of a file in the folder of the index or below, written
/// in the one way there is to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardNameProblem {
    /// The name is empty.
    #[error("is empty")]
    Empty,
    /// The name has a NUL in it.
    #[error("has a NUL in it")]
    Nul,
    /// The name is an absolute path.
    #[error("is absolute")]
    Absolute,
    /// The name has `..` in it.
    #[error("has '..' in it")]
    ParentDirectory,
    /// There is a shorter way to write the name.
    #[error("is not a plain relative name")]
    NotPlain,
}

/// A contradiction between the splits of a model and their names. Splits are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitProblem {
    /// The name of a file is that of another split.
    #[error(
        "by its name it is split {number} of {count}, but by its metadata {found_number} of \
         {found_count}; give it its own name back"
    )]
    Misnamed {
        /// The number in the name.
        number: u64,
        /// How many splits there are, by the name.
        count: u64,
        /// The number in the metadata.
        found_number: u64,
        /// How many splits there are, by the metadata.
        found_count: u64,
    },
    /// The name of the first split is not one by which the others can be found.
    #[error(
        "it is the first of {count} splits, and the others are found only if its name ends in \
         -00001-of-{count:05}.gguf"
    )]
    Unnamed {
        /// How many splits there are.
        count: u64,
    },
    /// A file is not the split that its name declares.
    #[error(
        "it should be split {number} of {count}, but its metadata has split.no {} and \
         split.count {}", shown(*found_number), shown(*found_count)
    )]
    OtherSplit {
        /// The number in the name.
        number: u64,
        /// How many splits there are, by the name.
        count: u64,
        /// The `split.no` of the metadata, which counts from 0, if there is one.
        found_number: Option<u64>,
        /// The `split.count` of the metadata, if there is one.
        found_count: Option<u64>,
    },
    /// A tensor is in two splits.
    #[error("tensor {tensor} is in two splits, {first} and {second}")]
    TensorTwice {
        /// The tensor.
        tensor: QuotedName,
        /// The number of the first split.
        first: u64,
        /// The number of the second split.
        second: u64,
    },
    /// A split declares another number of tensors than the splits have.
    #[error(
        "split {number} says that all have {count} tensors together, but they have {found_count}; \
         are they of the same version?"
    )]
    TensorCount {
        /// The number of the split.
        number: u64,
        /// The number of tensors that it declares.
        count: u64,
        /// The number of tensors that the splits have.
        found_count: u64,
    },
}

fn shown(number: Option<u64>) -> String {
    number.map_or("?".to_owned(), |number| number.to_string())
}
