//! `longshore pt`, with images that the library built.

mod command;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use command::{Outcome, longshore};
use longshore::mem::{BusAddr, Granule};
use longshore::pagetable::cache_sync::Coherent;
use longshore::pagetable::format::*;
use longshore::pagetable::table_memory::{Slab, TableAddr, TableMeta};
use longshore::pagetable::{PageTable, Prot};

/// The physical address of the image's first byte.
const BASE: u64 = 0x8000_0000;
const UNITS: usize = 256;

/// An image with the tables of one format, and their mappings.
struct Built {
    folder: tempfile::TempDir,
    format: &'static [&'static str],
    root: u64,
    /// The mapped pages: first address, size, target.
    mapped: Vec<(u64, u64, u64)>,
    hole: u64,
}

/// Maps runs, pages and blocks at both ends of the input address range of `format`.
fn build<F: Format>(words: &'static [&'static str], format: F) -> Built {
    let entries: Vec<AtomicU64> = (0..UNITS * 512).map(|_| AtomicU64::new(0)).collect();
    let metas: Vec<TableMeta> = (0..UNITS).map(|_| TableMeta::new()).collect();
    let slab = Slab::new(&entries, &metas, TableAddr::new(BASE)).unwrap();
    let table = PageTable::new(format, &slab, Coherent).unwrap();
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let block = 1u64 << geometry.shift(1).min(geometry.input_bits() - 2);
    let last = geometry.last_va();
    table.map(geometry.iova(0), BusAddr::new(block), block + 3 * granule, Prot::READ).unwrap();
    let rw = Prot::READ_WRITE;
    table
        .map(geometry.iova(last - 4 * granule + 1), BusAddr::new(granule), 4 * granule, rw)
        .unwrap();
    let mut mapped = Vec::new();
    let walked = table.walker().walk_all(|mapping| {
        mapped.push((mapping.iova.raw(), 1 << mapping.page_log2, mapping.bus.raw()));
        ControlFlow::<()>::Continue(())
    });
    assert!(walked.is_continue());
    assert!(mapped.len() >= 2);
    let folder = tempfile::tempdir().unwrap();
    let mut file = File::create(folder.path().join("memory.bin")).unwrap();
    let bytes: Vec<u8> =
        entries.iter().flat_map(|entry| entry.load(Ordering::Relaxed).to_le_bytes()).collect();
    file.write_all(&bytes).unwrap();
    let hole = geometry.iova(2 * block).raw();
    Built { folder, format: words, root: table.root().raw(), mapped, hole }
}

impl Built {
    fn path(&self) -> PathBuf {
        self.folder.path().join("memory.bin")
    }

    fn run(&self, command: &str, more: &[&str]) -> Outcome {
        let (path, root) = (self.path(), format!("{:#x}", self.root));
        let mut words = vec!["pt", command, "--format"];
        words.extend(self.format);
        words.extend(["--root", &root, "--base", "0x80000000", path.to_str().unwrap()]);
        words.extend(more);
        longshore(&words)
    }
}

fn granule(log2: u32) -> Granule {
    Granule::new(1 << log2).unwrap()
}

/// Builds an image for every format, with its options on the command line.
fn all() -> Vec<Built> {
    let stage1 = |log2| ArmStage1::new(ArmStage1Config::new(granule(log2))).unwrap();
    let stage2 = |log2, bits| {
        let (input_bits, output_bits) = (bits, bits);
        let config = ArmStage2Config::new(granule(log2))
            .with_input_bits(input_bits)
            .with_output_bits(output_bits);
        ArmStage2::new(config).unwrap()
    };
    let upper = ArmStage1Config::new(granule(12)).with_upper(true);
    let wide = ArmStage1Config::new(granule(12)).with_input_bits(52).with_output_bits(52);
    let second = VtdSecondConfig::new().with_output_bits(52);
    let first = VtdFirstConfig::new().with_output_bits(52).with_five_levels(true);
    let riscv = |mode| RiscV::new(RiscVConfig::new(mode)).unwrap();
    vec![
        build(&["arm-lpae-s1"], stage1(12)),
        build(&["arm-lpae-s1", "--granule", "16K"], stage1(14)),
        build(&["arm-lpae-s1", "--granule", "64KiB"], stage1(16)),
        build(&["arm-lpae-s1", "--upper"], ArmStage1::new(upper).unwrap()),
        build(
            &["arm-lpae-s1", "--input-bits", "52", "--output-bits", "52"],
            ArmStage1::new(wide).unwrap(),
        ),
        build(&["arm-lpae-s2", "--input-bits", "40", "--output-bits", "40"], stage2(12, 40)),
        build(
            &["arm-lpae-s2", "--granule", "64K", "--input-bits", "52", "--output-bits", "52"],
            stage2(16, 52),
        ),
        build(&["vtd-second"], VtdSecond::new(second).unwrap()),
        build(&["vtd-first", "--levels", "5"], VtdFirst::new(first).unwrap()),
        build(&["amd-v1"], AmdV1::new(AmdV1Config::new()).unwrap()),
        build(&["amd-v1", "--levels", "6"], AmdV1::new(AmdV1Config::new().with_levels(6)).unwrap()),
        build(&["x86-64"], X86_64::new(X86_64Config::new()).unwrap()),
        build(&["riscv-sv39"], riscv(RiscVMode::Sv39)),
        build(&["riscv-sv48"], riscv(RiscVMode::Sv48)),
        build(&["riscv-sv57"], riscv(RiscVMode::Sv57)),
    ]
}

fn number(value: &serde_json::Value) -> u64 {
    let text = value.as_str().unwrap();
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

#[test]
fn a_walk_finds_the_mapping_in_every_format() {
    for built in all() {
        let name = built.format.join(" ");
        for (iova, len, bus) in [built.mapped[0], *built.mapped.last().unwrap()] {
            let address = format!("{:#x}", iova + (len - 8));
            let json = built.run("walk", &[&address, "--json"]).json();
            assert_eq!(number(&json["mapping"]["bus"]), bus + (len - 8), "{name}: {json}");
            assert_eq!(number(&json["mapping"]["page_iova"]), iova, "{name}");
            assert_eq!(json["mapping"]["page_bytes"], len, "{name}");
            assert_eq!(json["exit_code"], 0);
            let steps = json["steps"].as_array().unwrap();
            assert_eq!(number(&steps[0]["table"]), built.root);
            assert_eq!(steps.last().unwrap()["is"]["kind"], "leaf");
            let text = built.run("walk", &[&address]);
            assert_eq!(text.code, 0, "{name}: {}", text.stderr);
            assert_eq!(text.stdout.lines().count(), steps.len() + 1, "{}", text.stdout);
            assert!(text.stdout.contains(&format!("{address} -> {:#x}", bus + (len - 8))));
            // `decode` describes the last entry of the walk in the same way.
            let leaf = steps.last().unwrap();
            let mut words = vec!["pt", "decode", "--json", "--format"];
            words.extend(built.format);
            words.extend(["--level", leaf["level"].as_str().unwrap()]);
            words.push(leaf["entry"].as_str().unwrap());
            let decoded = longshore(&words).json();
            assert_eq!(decoded["is"], leaf["is"], "{name}");
            assert_eq!(decoded["unnamed_bits"], "0x0", "{name}: {decoded}");
        }
    }
}

#[test]
fn a_walk_of_an_unmapped_address_names_its_last_entry() {
    for built in all() {
        let address = format!("{:#x}", built.hole);
        let walked = built.run("walk", &[&address]);
        walked.expect(18, &[&address, "is not mapped: entry ", "is absent"]);
        assert!(walked.stdout.contains("absent"), "{}", walked.stdout);
        let walked = built.run("walk", &[&address, "--json"]);
        assert_eq!(walked.code, 18);
        let json: serde_json::Value = serde_json::from_str(&walked.stdout).unwrap();
        assert!(json["mapping"].is_null());
        assert_eq!(json["exit_code"], 18);
    }
}

#[test]
fn a_dump_has_all_mappings_in_every_format() {
    for built in all() {
        let name = built.format.join(" ");
        let json = built.run("dump", &["--json"]).json();
        let nodes = json["nodes"].as_array().unwrap();
        let leaves = nodes.iter().filter(|node| node["kind"] == "leaves");
        let mut found = Vec::new();
        for node in leaves {
            let size = node["page_bytes"].as_u64().unwrap();
            let (iova, bus) = (number(&node["iova"]), number(&node["bus"]));
            for page in 0..node["pages"].as_u64().unwrap() {
                found.push((iova + page * size, size, bus + page * size));
            }
        }
        assert_eq!(found, built.mapped, "{name}");
        let text = built.run("dump", &[]);
        assert_eq!(text.code, 0, "{}", text.stderr);
        // One line for the format, and one for each node.
        assert_eq!(text.stdout.lines().count(), nodes.len() + 1, "{}", text.stdout);
    }
}

#[test]
fn a_dump_of_a_range_has_only_entries_of_that_range() {
    let built = build(&["vtd-second"], VtdSecond::new(VtdSecondConfig::new()).unwrap());
    let json = built.run("dump", &["--json", "--range", "0x201000+0x1000"]).json();
    let nodes = json["nodes"].as_array().unwrap();
    let leaves: Vec<_> = nodes.iter().filter(|node| node["kind"] == "leaves").collect();
    assert_eq!(leaves.len(), 1, "{nodes:?}");
    assert_eq!(leaves[0]["iova"], "0x201000");
    assert_eq!(leaves[0]["pages"], 1);
    built.run("dump", &["--range", "0x201000"]).expect(2, &["is not a range"]);
    let beyond = built.run("dump", &["--range", "0xfffffffff000+0x2000"]);
    beyond.expect(2, &["outside of the input address range"]);
}

#[test]
fn tables_that_point_to_themselves_are_shown_once() {
    let built = build(&["x86-64"], X86_64::new(X86_64Config::new()).unwrap());
    // Every entry of the root points to the root.
    let entry = (built.root | 0x27).to_le_bytes();
    let mut file = File::options().write(true).open(built.path()).unwrap();
    file.seek(SeekFrom::Start(built.root - BASE)).unwrap();
    file.write_all(&entry.repeat(512)).unwrap();
    let dumped = built.run("dump", &[]);
    assert_eq!(dumped.code, 0, "{}", dumped.stderr);
    assert_eq!(dumped.stdout.matches("shown above").count(), 512);
}

#[test]
fn a_table_that_is_not_in_the_image_is_named() {
    let built = build(&["arm-lpae-s1"], ArmStage1::new(ArmStage1Config::new(granule(12))).unwrap());
    let file = File::options().write(true).open(built.path()).unwrap();
    // The image keeps the root and a part of the next table.
    file.set_len(0x1000 + 0x100).unwrap();
    let address = format!("{:#x}", built.mapped.last().unwrap().0);
    let walked = built.run("walk", &[&address]);
    walked.expect(15, &["table at 0x8000", "not in the image", "has 0x80000000 to 0x800010ff"]);
    assert!(walked.stdout.contains("level 0"), "{}", walked.stdout);
    let dumped = built.run("dump", &[]);
    dumped.expect(15, &["table at 0x8000", "image"]);
    assert!(dumped.stdout.contains("not in the image"), "{}", dumped.stdout);
    let dumped = built.run("dump", &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&dumped.stdout).unwrap();
    assert!(json["missing"].as_str().unwrap().contains("table at 0x8000"));
}

#[test]
fn an_image_may_end_at_the_top_of_the_address_space() {
    let format = ArmStage1::new(ArmStage1Config::new(granule(12))).unwrap();
    let built = build(&["arm-lpae-s1"], format);
    let path = built.path();
    let run = |command, base: u64, root: u64, more: &[&str]| {
        let (base, root) = (format!("{base:#x}"), format!("{root:#x}"));
        let mut words = vec!["pt", command, "--format", "arm-lpae-s1"];
        words.extend(["--root", &root, "--base", &base, path.to_str().unwrap()]);
        words.extend(more);
        longshore(&words)
    };
    let len = std::fs::metadata(&path).unwrap().len();
    let (top, last_page) = (u64::MAX - (len - 1), u64::MAX - 0xfff);
    // The last table below 2^64 is empty; its last entry is in the image's last eight bytes.
    for iova in ["0x0", "0xffffffffffff"] {
        run("walk", top, last_page, &[iova]).expect(18, &["not mapped", "0xfffffffffffff000"]);
    }
    // The same table, with an image that ends before it, and with one at another address.
    for base in [top - 0x1000, BASE] {
        let walked = run("walk", base, last_page, &["0x0"]);
        walked.expect(15, &["is at 0xfffffffffffff000", "not in the image", "has 0x"]);
        run("dump", base, last_page, &[]).expect(15, &["0xfffffffffffff000", "image"]);
    }
    run("walk", top + 0x1000, last_page, &["0x0"]).expect(2, &["--base", "end above 2^64"]);
}

#[test]
fn an_image_may_be_larger_than_memory() {
    let built = build(&["riscv-sv39"], RiscV::new(RiscVConfig::new(RiscVMode::Sv39)).unwrap());
    let file = File::options().write(true).open(built.path()).unwrap();
    // A sparse file of 8 TiB.
    file.set_len(8 << 40).unwrap();
    assert_eq!(built.run("walk", &["0"]).code, 0);
}

#[test]
fn an_entry_is_decoded_field_by_field() {
    let decoded = longshore(&[
        "pt",
        "decode",
        "--format",
        "arm-lpae-s1",
        "--level",
        "2",
        "0x600000_80000f4d",
    ]);
    // A block of 2 MiB.
    let expected = "\
0x0060000080000f4d: Arm LPAE stage 1, level 2
  kind         leaf, 2 MiB
  address      0x80000000
  permissions  rw---- (read, write)
";
    assert_eq!(decoded.code, 0, "{}", decoded.stderr);
    assert!(decoded.stdout.starts_with(expected), "{}", decoded.stdout);
    for line in ["UXN", "PXN", "AttrIndx", "AP[2:1]", "SH", "inner shareable", "OA[47:12]"] {
        assert!(decoded.stdout.contains(line), "{line} in {}", decoded.stdout);
    }
    let json = |words: &[&str]| {
        longshore(&[&["pt", "decode", "--json", "--format"], words].concat()).json()
    };
    assert_eq!(json(&["x86-64", "0"])["is"]["kind"], "absent");
    assert_eq!(json(&["riscv-sv39", "0x5"])["is"]["kind"], "reserved");
    let table = json(&["vtd-second", "--level", "ss-pml4e", "0x5003"]);
    assert_eq!(table["is"]["table"], "0x5000");
    assert_eq!(table["level"], "SS-PML4E");
    let page = json(&["amd-v1", "--dirty", "0x6000000000005e41"]);
    assert_eq!(page["is"]["page_bytes"], 16384);
    assert_eq!(page["is"]["dirty"], true);
}

#[test]
fn an_address_is_split_into_its_indices() {
    let json = longshore(&["pt", "index", "--format", "x86-64", "--json", "0x8080604567"]).json();
    let found: Vec<_> = json["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| (level["level"].as_str().unwrap(), level["index"].as_u64().unwrap()))
        .collect();
    assert_eq!(found, [("PML4E", 1), ("PDPTE", 2), ("PDE", 3), ("PTE", 4)]);
    assert_eq!(json["offset"], 0x567);
    let text =
        longshore(&["pt", "index", "--format", "arm-lpae-s2", "--input-bits", "40", "0x1234"]);
    // Two concatenated tables have ten bits of index.
    assert!(text.stdout.contains("level 1    [39:30]"), "{}", text.stdout);
    assert!(text.stdout.contains("offset     [11:0]"), "{}", text.stdout);
    let refused = longshore(&["pt", "index", "--format", "x86-64", "0x800000000000"]);
    refused.expect(2, &["0x0 to 0x7fffffffffff and 0xffff800000000000 to 0xffffffffffffffff"]);
}

#[test]
fn the_formats_are_listed_and_each_has_pages() {
    let json = longshore(&["pt", "formats", "--json"]).json();
    let formats = json["formats"].as_array().unwrap();
    assert_eq!(formats.len(), 9);
    let text = longshore(&["pt", "formats"]).stdout;
    for format in formats {
        let name = format["format"].as_str().unwrap();
        assert!(text.contains(name), "{name} in {text}");
        for granule in format["granules"].as_array().unwrap() {
            assert_eq!(granule["page_bytes"][0], granule["granule_bytes"]);
        }
    }
    assert!(text.contains("every power of two from 4 KiB to 256 GiB"), "{text}");
}

#[test]
fn invalid_options_are_refused_with_the_valid_ones() {
    let decode = |words: &[&str]| longshore(&[&["pt", "decode", "--format"], words].concat());
    decode(&["arm", "0"]).expect(2, &["arm-lpae-s1", "vtd-second", "riscv-sv57"]);
    decode(&["arm-lpae-s1", "zero"]).expect(2, &["'zero' is not a 64-bit number"]);
    decode(&["arm-lpae-s1", "--granule", "8K", "0"]).expect(2, &["4 KiB, 16 KiB, 64 KiB"]);
    decode(&["vtd-second", "--granule", "16K", "0"]).expect(2, &["vtd-second has 4 KiB"]);
    decode(&["amd-v1", "--levels", "7", "0"]).expect(2, &["between 1 and 6"]);
    decode(&["x86-64", "--levels", "3", "0"]).expect(2, &["4 or 5, not 3"]);
    let small = ["arm-lpae-s2", "--input-bits", "34", "--levels"];
    decode(&[&small[..], &["4", "0"]].concat())
        .expect(2, &["4 levels are more than 34 input bits fill; use at most 3"]);
    decode(&[&small[..], &["2", "0"]].concat()).expect(0, &[]);
    decode(&["x86-64", "--input-bits", "48", "0"]).expect(2, &["x86-64 has no --input-bits"]);
    decode(&["x86-64", "--level", "PTX", "0"]).expect(2, &["PML4E, PDPTE, PDE, PTE"]);
    decode(&["arm-lpae-s1", "--level", "-1", "0"]).expect(2, &["0, 1, 2, 3"]);
    let walk = |words: &[&str]| longshore(&[&["pt", "walk", "--format"], words].concat());
    let folder = tempfile::tempdir().unwrap();
    let (dir, empty) = (folder.path(), folder.path().join("empty"));
    File::create(&empty).unwrap();
    let (dir, empty) = (dir.to_str().unwrap(), empty.to_str().unwrap());
    walk(&["x86-64", "--root", "0", "/no/such/image", "0"]).expect(10, &["/no/such/image"]);
    walk(&["x86-64", "--root", "0", dir, "0"]).expect(11, &["is a directory"]);
    walk(&["x86-64", "--root", "0", empty, "0"]).expect(17, &["is empty"]);
    let built = build(&["vtd-second"], VtdSecond::new(VtdSecondConfig::new()).unwrap());
    built.run("walk", &["0x1000000000000"]).expect(2, &["is not translated"]);
    let odd = longshore(&[
        "pt",
        "walk",
        "--format",
        "vtd-second",
        "--root",
        "0x8",
        built.path().to_str().unwrap(),
        "0",
    ]);
    odd.expect(2, &["--root", "4096"]);
}

#[test]
fn help_completions_and_man_pages_include_pt() {
    let help = longshore(&["pt", "--help"]).stdout;
    for word in ["Examples:", "decode", "walk", "dump", "index", "formats"] {
        assert!(help.contains(word), "{word} in {help}");
    }
    for command in ["decode", "walk", "dump", "index"] {
        let help = longshore(&["pt", command, "--help"]).stdout;
        assert!(help.contains("Example") && help.contains("riscv-sv39"), "{help}");
    }
    assert!(longshore(&["completions", "bash"]).stdout.contains("arm-lpae-s1"));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(longshore(&["man", folder.path().to_str().unwrap()]).code, 0);
    assert!(folder.path().join("longshore-pt.1").exists());
    assert!(folder.path().join("longshore-pt-walk.1").exists());
}
