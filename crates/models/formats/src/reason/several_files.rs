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
    /// The number of headers is not the number of shards in the index.
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
        "tensor {tensor} is not in the shard {shard} that the index names, {}; are the shards and the \
         index of the same version?", instead(found.as_ref())
    )]
    OtherShard {
        /// The tensor.
        tensor: QuotedName,
        /// The shard that the index names.
        shard: QuotedName,
        /// The shard that has the tensor, if there is one.
        found: Option<QuotedName>,
    },
    /// The length of the tensors of all shards is not the one that the index declares.
    #[error(
        "it declares {total_size_bytes} bytes of tensors, but the shards have {found_bytes}; name the \
         shards one by one to load them as they are"
    )]
    TotalSize {
        /// The length that the index declares.
        total_size_bytes: u64,
        /// The minimum length of the tensors, with a boolean counted as one bit.
        found_bytes: u128,
    },
}

fn instead(found: Option<&QuotedName>) -> String {
    found.map_or("nor in any other".to_owned(), |other| format!("but in {other}"))
}

/// A problem of a shard name. It must be the normalized relative path of a file in the folder of the
/// index or below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardNameProblem {
    /// The name is empty.
    #[error("is empty")]
    Empty,
    /// The name contains a NUL.
    #[error("has a NUL in it")]
    Nul,
    /// The name is an absolute path.
    #[error("is absolute")]
    Absolute,
    /// The name contains `..`.
    #[error("has '..' in it")]
    ParentDirectory,
    /// The path is not normalized: it contains `./` or `//`, or ends in `/`.
    #[error("is not a plain relative name")]
    NotPlain,
}

/// A contradiction between the splits of a model and their names. Splits are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitProblem {
    /// The name of a file belongs to another split than its metadata.
    #[error(
        "by its name it is split {number} of {count}, but by its metadata {found_number} of \
         {found_count}; restore its original name"
    )]
    Misnamed {
        /// The split number in the name.
        number: u64,
        /// The number of splits in the name.
        count: u64,
        /// The split number in the metadata.
        found_number: u64,
        /// The number of splits in the metadata.
        found_count: u64,
    },
    /// The names of the other splits cannot be derived from the name of the first.
    #[error(
        "it is the first of {count} splits, and the others are found only if its name ends in \
         -00001-of-{count:05}.gguf"
    )]
    Unnamed {
        /// The number of splits.
        count: u64,
    },
    /// A file is not the split that its name declares.
    #[error(
        "it should be split {number} of {count}, but its metadata has split.no {} and \
         split.count {}", shown(*found_number), shown(*found_count)
    )]
    OtherSplit {
        /// The split number in the name.
        number: u64,
        /// The number of splits in the name.
        count: u64,
        /// The `split.no` of the metadata, if there is one. It counts from 0.
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
    /// The number of tensors that a split declares is not the number that all splits have.
    #[error(
        "split {number} declares {count} tensors in all splits, but they have {found_count}; are they \
         of the same version?"
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
