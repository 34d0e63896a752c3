"""Loads a safetensors file into host memory with one of the peers, and times only the load.

    driver.py load PEER FILE REHEARSAL [SOURCE SOURCE]
                                           ready, go, done, verify, verified (one JSON object a line);
                                           if FILE and REHEARSAL are URLs, SOURCE is the content of each
    driver.py convert PEER FILE OUTPUT     converts FILE to the format of a peer that does not read safetensors
    driver.py versions                     the versions of the installed packages

Imports and one load of a small file come before "ready", so neither is part of the time.
"""

import importlib.metadata
import json
import mmap
import os
import struct
import sys
import time

PAGE_BYTES = 4096


# A peer is a function that imports what it needs and returns a second function. That one loads a path
# and returns its tensors by name, or the whole file as one array of bytes.


def safetensors():
    """Maps the file and touches every page. The tensors are views of the page cache."""
    import torch
    from safetensors.torch import load_file

    def load(path):
        tensors = load_file(path)
        for tensor in tensors.values():
            tensor.reshape(-1).view(torch.uint8)[::PAGE_BYTES].sum()
        return tensors

    return load


def safetensors_numpy():
    """Copies the tensors out of the mapped file into their own arrays."""
    from safetensors.numpy import load_file

    return load_file


def readinto():
    """Reads the file through the page cache into one array."""
    import numpy

    def load(path):
        with open(path, "rb", buffering=0) as file:
            content = numpy.empty(os.fstat(file.fileno()).st_size, dtype=numpy.uint8)
            view, done = memoryview(content), 0
            while done < len(view):
                done += file.readinto(view[done:])
        return content

    return load


def mmap_clone():
    """Maps the file and copies it into one array."""
    import numpy

    def load(path):
        with open(path, "rb") as file, mmap.mmap(
            file.fileno(), 0, prot=mmap.PROT_READ
        ) as mapped:
            source = numpy.frombuffer(mapped, dtype=numpy.uint8)
            content = source.copy()
            del source
        return content

    return load


def runai_model_streamer():
    from runai_model_streamer import SafetensorsStreamer

    def load(path):
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return dict(streamer.get_tensors())

    return load


def fastsafetensors():
    import torch  # noqa: F401  (imported by the package when it is first used)
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load(path):
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        loader.add_filenames({0: [path]})
        content = loader.copy_files_to_device()
        return {name: content.get_tensor(name) for name in loader.get_keys()}

    return load


def tensorizer():
    from tensorizer import TensorDeserializer

    def load(path):
        readers = min(4, os.cpu_count() or 1)
        return dict(TensorDeserializer(path, device="cpu", num_readers=readers))

    return load


def longshore():
    """Loads with this project's own package. The tensors are views of one buffer."""
    from longshore.numpy import load_file

    return load_file


def convert_tensorizer(path, output):
    from safetensors.torch import load_file
    from tensorizer import TensorSerializer

    serializer = TensorSerializer(output)
    serializer.write_state_dict(load_file(path))
    serializer.close()


PEERS = {
    "safetensors": safetensors,
    "safetensors-numpy": safetensors_numpy,
    "readinto": readinto,
    "mmap+clone": mmap_clone,
    "runai-model-streamer": runai_model_streamer,
    "runai-model-streamer S3": runai_model_streamer,
    "fastsafetensors": fastsafetensors,
    "tensorizer": tensorizer,
    "longshore, Python": longshore,
}
CONVERTERS = {"tensorizer": convert_tensorizer}
PACKAGES = [
    "numpy",
    "safetensors",
    "torch",
    "runai-model-streamer",
    "runai-model-streamer-s3",
    "boto3",
    "awscli",
    "huggingface_hub",
    "fastsafetensors",
    "tensorizer",
    "longshore",
]


def as_bytes(tensor):
    if type(tensor).__module__.startswith("torch"):
        import torch

        return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return tensor.reshape(-1).view("uint8")


def check(loaded, path):
    """Compares both ends of each tensor, and a word of each of its pages, with the file."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        start = 8 + header_bytes
        header.pop("__metadata__", None)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            if isinstance(loaded, dict):
                if set(loaded) != set(header):
                    raise ValueError("the tensors' names are not those of the file")
                for name, facts in header.items():
                    begin, end = facts["data_offsets"]
                    compare(as_bytes(loaded[name]), content, start + begin, start + end, name)
            else:
                compare(as_bytes(loaded), content, 0, len(content), "the file")


def compare(seen, content, begin, end, name):
    if len(seen) != end - begin:
        raise ValueError(f"{name} has {len(seen)} bytes and not {end - begin}")
    places = {0, max(0, len(seen) - PAGE_BYTES), *range(0, len(seen), 256 * PAGE_BYTES)}
    for at in places:
        stop = min(at + PAGE_BYTES, len(seen))
        if seen[at:stop].tobytes() != content[begin + at : begin + stop]:
            raise ValueError(f"{name} differs from the file at byte {at}")


def say(out, **message):
    out.write(json.dumps(message) + "\n")
    out.flush()


def load(out, peer, path, rehearsal, *sources):
    source, rehearsal_source = sources or (source_of(path), source_of(rehearsal))
    began = time.perf_counter()
    try:
        run = PEERS[peer]()
    except ImportError as error:
        return say(out, say="unavailable", reason=f"{peer} cannot be imported: {error}")
    import_seconds = time.perf_counter() - began
    check(run(rehearsal), rehearsal_source)
    say(out, say="ready", import_seconds=import_seconds)
    if sys.stdin.readline().strip() != "go":
        return None
    began, used = time.perf_counter(), time.process_time()
    loaded = run(path)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
    say(out, say="done", seconds=seconds, cpu_seconds=cpu_seconds)
    if sys.stdin.readline().strip() == "verify":
        check(loaded, source)
        say(out, say="verified")
    # Skips the interpreter's slow shutdown: the bench needs nothing more.
    os._exit(0)


def source_of(path):
    """Returns the path of the safetensors file from which a converted file was made."""
    return path.removesuffix(".tensors")


def main():
    # Libraries may print to standard output, so messages get a descriptor of their own.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    verb, *arguments = sys.argv[1:]
    if verb == "load":
        peer = arguments[0]
        try:
            load(out, *arguments)
        except Exception as error:  # report any exception of a peer
            say(out, say="failed", reason=f"{peer}: {type(error).__name__}: {error}")
    elif verb == "convert":
        peer, path, output = arguments
        CONVERTERS[peer](path, output)
    elif verb == "versions":
        found = {}
        for package in PACKAGES:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                pass
        out.write(json.dumps(found) + "\n")
    else:
        sys.exit(f"unknown verb {verb}")


if __name__ == "__main__":
    main()
