use proptest::prelude::*;

use super::*;

fn selected<'a>(names: &[&'a str], filter: &ModelFilter) -> Vec<&'a str> {
    let places = select(names, filter);
    let places = places.unwrap_or_else(|problem| panic!("{names:?}: {problem}"));
    places.into_iter().map(|place| names[place]).collect()
}

fn problem(names: &[&str], filter: &ModelFilter) -> String {
    select(names, filter).unwrap_err().to_string()
}

fn plain(names: &[&'static str]) -> Vec<&'static str> {
    selected(names, &ModelFilter::new())
}

fn variant(variant: &str) -> ModelFilter {
    ModelFilter::new().variant(variant)
}

#[test]
fn an_index_comes_before_single_files_and_safetensors_before_gguf() {
    let index = "model.safetensors.index.json";
    let all = [
        "README.md",
        "consolidated.safetensors",
        "llama-Q4_K_M.gguf",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors",
        index,
        "pytorch_model.bin",
    ];
    assert_eq!(plain(&all), [index]);
    let without_index: Vec<_> = all.into_iter().filter(|name| *name != index).collect();
    assert_eq!(plain(&without_index), ["model.safetensors"]);
    let gguf = ModelFilter::new().format(Format::Gguf);
    assert_eq!(selected(&all, &gguf), ["llama-Q4_K_M.gguf"]);
    let several = problem(&["a.safetensors", "b.safetensors"], &ModelFilter::new());
    assert!(several.starts_with("it contains 2 models: \"a.safetensors\", \"b.safetensors\""));
    assert_eq!(
        plain(&["consolidated.safetensors", "a.gguf", "model.safetensors"]),
        ["model.safetensors"]
    );
    assert_eq!(
        plain(&["diffusion_pytorch_model.safetensors", "a.gguf", "b.gguf"]),
        ["diffusion_pytorch_model.safetensors"]
    );
    assert_eq!(plain(&["config.json", "a.gguf"]), ["a.gguf"]);
}

#[test]
fn a_complete_set_without_an_index_is_one_model() {
    let names = ["m-00002-of-00002.safetensors", "m-00001-of-00002.safetensors", "config.json"];
    assert_eq!(plain(&names), ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"]);
    let refused = problem(&["m-00002-of-00003.safetensors"], &ModelFilter::new());
    assert_eq!(
        refused,
        "2 of the 3 files of the set with \"m-00002-of-00003.safetensors\" are missing; fetch them"
    );
}

#[test]
fn splits_are_named_by_the_first() {
    let names = ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "mmproj-m-f16.gguf"];
    assert_eq!(plain(&names), ["m-00001-of-00002.gguf"]);
    assert!(problem(&names[..1], &ModelFilter::new()).starts_with("1 of the 2 files"));
}

#[test]
fn variants_are_selected_if_there_is_no_plain_file() {
    let names = ["model.fp16.safetensors", "model.safetensors", "adapter_model.safetensors"];
    assert_eq!(plain(&names), ["model.safetensors"]);
    assert_eq!(selected(&names, &variant("fp16")), ["model.fp16.safetensors"]);
    assert_eq!(plain(&names[..1]), ["model.fp16.safetensors"]);
    let dotted = ["base.safetensors", "other.XL.safetensors"];
    assert!(problem(&dotted, &ModelFilter::new()).contains("2 models"));
    assert_eq!(selected(&names, &variant("FP16")), ["model.fp16.safetensors"]);
    // An index of a variant does not come before the model without a variant.
    let names = ["model.safetensors.index.fp16.json", "model.safetensors"];
    assert_eq!(plain(&names), ["model.safetensors"]);
    assert_eq!(selected(&names, &variant("fp16")), ["model.safetensors.index.fp16.json"]);
}

#[test]
fn adapters_and_projectors_are_not_models() {
    let none = "it contains no safetensors and no GGUF files";
    for name in ["adapter_model.safetensors", "mmproj-BF16.gguf", "imatrix_unsloth.gguf"] {
        assert_eq!(problem(&[name], &ModelFilter::new()), none);
        assert_eq!(problem(&[name], &variant("BF16")), none);
        assert_eq!(select_companion(&[name], &ModelFilter::new()), Ok(vec![0]));
    }
    let names = ["mmproj-BF16.gguf", "m-Q8_0.gguf", "imatrix.gguf", "._m.gguf"];
    assert_eq!(plain(&names), ["m-Q8_0.gguf"]);
    assert!(problem(&names, &variant("BF16")).contains("no files of the variant"));
}

#[test]
fn a_set_in_two_spellings_is_not_clear() {
    let names = [
        "m-00001-of-00002.fp16.safetensors",
        "m-00002-of-00002.fp16.safetensors",
        "m.fp16-00001-of-00002.safetensors",
        "m.fp16-00002-of-00002.safetensors",
    ];
    assert!(problem(&names, &ModelFilter::new()).starts_with("it contains 2 models"));
}

#[test]
fn the_variant_of_a_gguf_model_is_a_word_of_its_name() {
    let names = ["m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
    assert_eq!(selected(&names, &variant("q8_0")), ["m-Q8_0-00001-of-00002.gguf"]);
    assert_eq!(
        problem(&names, &ModelFilter::new()),
        "it contains 2 models: \"m-Q4_K_M.gguf\", \"m-Q8_0-00001-of-00002.gguf\"; name one of them, or \
         select by variant or pattern"
    );
    assert_eq!(
        problem(&names, &variant("Q4_K")),
        "it contains no files of the variant \"Q4_K\"; it has \"m-Q4_K_M.gguf\", \
         \"m-Q8_0-00001-of-00002.gguf\""
    );
}

#[test]
fn patterns_select_all_matching_files_with_weights() {
    let names = [
        "config.json",
        "m-00001-of-00002.safetensors",
        "m-00002-of-00002.safetensors",
        "m.safetensors.index.json",
        "original/consolidated.safetensors",
    ];
    let include = |pattern: &str| ModelFilter::new().include(pattern);
    assert_eq!(selected(&names, &include("m*")), [names[3], names[1], names[2]]);
    assert_eq!(selected(&names, &include("original/*")), [names[4]]);
    let both = include("*00001*").include("*00002-*");
    assert_eq!(selected(&names, &both), [names[1], names[2]]);
    assert!(problem(&names, &include("*.json.bak")).contains("it has \"m-00001-of-00002"));
    assert!(include("a/b").includes_folders() && !include("a?b").includes_folders());
}

#[test]
fn a_directory_without_a_model_is_refused() {
    let none = "it contains no safetensors and no GGUF files";
    assert_eq!(problem(&[], &ModelFilter::new()), none);
    assert_eq!(
        problem(&["pytorch_model.bin", "config.json"], &ModelFilter::new()),
        format!("{none}; convert \"pytorch_model.bin\" to one of them")
    );
    let gguf = ModelFilter::new().format(Format::Gguf);
    let other = "it contains no GGUF files; it has \"m.safetensors\"";
    assert_eq!(problem(&["m.safetensors", "a.pth"], &gguf), other);
}

proptest! {
    #[test]
    fn any_names_give_places_of_files_with_weights_or_an_error(
        names in prop::collection::vec(
            "(a/)?(model|m|adapter_model|mmproj)(-0000[0-4]-of-0000[0-3])?(\\.fp16)?\
             \\.(safetensors|gguf|bin|safetensors\\.index\\.json)", 0..12),
        variant in prop::option::of("(fp16|m)"),
        include in prop::option::of("(\\*|m\\*|a/\\*)"),
    ) {
        let mut filter = ModelFilter::new();
        filter.variant = variant;
        filter.include = include.into_iter().collect();
        match select(&names, &filter) {
            Ok(places) => {
                prop_assert!(!places.is_empty());
                let mut unique = places.clone();
                unique.sort_unstable();
                unique.dedup();
                prop_assert_eq!(unique.len(), places.len());
                for place in places {
                    prop_assert!(!names[place].ends_with(".bin"));
                }
            }
            Err(problem) => prop_assert!(!problem.to_string().is_empty()),
        }
    }
}
