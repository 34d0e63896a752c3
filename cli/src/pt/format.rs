//! The formats, by their names on the command line.

use clap::ValueEnum;
use longshore::mem::Granule;
use longshore::pagetable::format::{
    AmdV1, AmdV1Config, ArmStage1, ArmStage1Config, ArmStage2, ArmStage2Config, Format, RiscV,
    RiscVConfig, RiscVMode, Unsupported, VtdFirst, VtdFirstConfig, VtdSecond, VtdSecondConfig,
    X86_64, X86_64Config,
};

use super::args::FormatArgs;
use crate::exit::failure;

const ARM_GRANULES: [Granule; 3] = [
    Granule::SIZE_4K,
    match Granule::new(1 << 14) {
        Ok(granule) => granule,
        Err(_) => Granule::SIZE_4K,
    },
    Granule::SIZE_64K,
];

/// The name of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatName {
    /// Arm's 64-bit tables, stage 1.
    ArmLpaeS1,
    /// Arm's 64-bit tables, stage 2.
    ArmLpaeS2,
    /// Intel VT-d, second stage.
    VtdSecond,
    /// Intel VT-d, first stage.
    VtdFirst,
    /// AMD IOMMU, version 1.
    AmdV1,
    /// x86-64, also AMD IOMMU version 2.
    #[value(name = "x86-64")]
    X86_64,
    /// RISC-V, three levels.
    RiscvSv39,
    /// RISC-V, four levels.
    RiscvSv48,
    /// RISC-V, five levels.
    RiscvSv57,
}

/// A configured format.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyFormat {
    ArmStage1(ArmStage1),
    ArmStage2(ArmStage2),
    VtdSecond(VtdSecond),
    VtdFirst(VtdFirst),
    AmdV1(AmdV1),
    X86_64(X86_64),
    RiscV(RiscV),
}

/// Evaluates an expression with `$format` bound to the format, of its concrete type.
macro_rules! with_format {
    ($any:expr, $format:ident => $body:expr) => {
        match $any {
            $crate::pt::format::AnyFormat::ArmStage1($format) => $body,
            $crate::pt::format::AnyFormat::ArmStage2($format) => $body,
            $crate::pt::format::AnyFormat::VtdSecond($format) => $body,
            $crate::pt::format::AnyFormat::VtdFirst($format) => $body,
            $crate::pt::format::AnyFormat::AmdV1($format) => $body,
            $crate::pt::format::AnyFormat::X86_64($format) => $body,
            $crate::pt::format::AnyFormat::RiscV($format) => $body,
        }
    };
}
pub(crate) use with_format;

impl FormatName {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns the description on the command line.
    pub(crate) fn title(self) -> String {
        let help =
            self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }

    pub(crate) const fn is_arm(self) -> bool {
        matches!(self, Self::ArmLpaeS1 | Self::ArmLpaeS2)
    }

    /// Returns the possible input address sizes in bits.
    pub(crate) fn input_bits(self) -> Vec<u32> {
        match self {
            Self::ArmLpaeS1 | Self::ArmLpaeS2 => (25..=52).collect(),
            Self::VtdSecond => (31..=57).collect(),
            Self::VtdFirst | Self::X86_64 => vec![48, 57],
            Self::AmdV1 => vec![21, 30, 39, 48, 57, 64],
            Self::RiscvSv39 => vec![39],
            Self::RiscvSv48 => vec![48],
            Self::RiscvSv57 => vec![57],
        }
    }

    /// Returns the smallest and the largest output address size in bits.
    pub(crate) const fn output_bits(self) -> (u32, u32) {
        match self {
            Self::RiscvSv39 | Self::RiscvSv48 | Self::RiscvSv57 => (32, 56),
            _ => (32, 52),
        }
    }

    /// Returns the possible sizes of the smallest page.
    pub(crate) fn granules(self) -> &'static [Granule] {
        if self.is_arm() { &ARM_GRANULES } else { &[Granule::SIZE_4K] }
    }

    /// Returns the optional features.
    pub(crate) const fn features(self) -> &'static [&'static str] {
        match self {
            Self::ArmLpaeS1 => &["contiguous bit", "dirty pages (DBM)", "TTBR1"],
            Self::ArmLpaeS2 => &["contiguous bit", "dirty pages (DBM)", "concatenated root"],
            Self::VtdSecond => &["dirty pages", "snoop control"],
            Self::VtdFirst | Self::X86_64 => &["dirty pages", "sign-extended addresses"],
            Self::AmdV1 => &["every power of two", "dirty pages", "force coherent"],
            Self::RiscvSv39 | Self::RiscvSv48 | Self::RiscvSv57 => {
                &["Svnapot", "Svpbmt", "dirty pages", "sign-extended addresses"]
            }
        }
    }
}

impl FormatArgs {
    /// Returns a format without options.
    pub(crate) const fn plain(format: FormatName) -> Self {
        Self {
            format,
            granule: None,
            input_bits: None,
            output_bits: None,
            levels: None,
            upper: false,
            no_runs: false,
            pages_512g: false,
            dirty: false,
        }
    }

    /// Configures the format.
    pub(crate) fn set_up(&self) -> anyhow::Result<AnyFormat> {
        self.refuse_what_it_has_not()?;
        let granule = self.granule()?;
        let output_bits = self.output_bits.unwrap_or(match self.format {
            name if name.is_arm() => 48,
            name => name.output_bits().1,
        });
        let input_bits = self.input_bits.unwrap_or(48);
        let (contiguous, dirty) = (!self.no_runs, self.dirty);
        let made = match self.format {
            FormatName::ArmLpaeS1 => ArmStage1::new(
                ArmStage1Config::new(granule)
                    .with_input_bits(input_bits)
                    .with_output_bits(output_bits)
                    .with_contiguous(contiguous)
                    .with_dirty_tracking(dirty)
                    .with_upper(self.upper),
            )
            .map(AnyFormat::ArmStage1),
            FormatName::ArmLpaeS2 => {
                let config = ArmStage2Config::new(granule)
                    .with_input_bits(input_bits)
                    .with_output_bits(output_bits)
                    .with_contiguous(contiguous)
                    .with_dirty_tracking(dirty);
                let config = match self.levels {
                    Some(levels) => config.with_levels(levels),
                    None => config,
                };
                ArmStage2::new(config).map(AnyFormat::ArmStage2)
            }
            FormatName::VtdSecond => VtdSecond::new(
                VtdSecondConfig::new()
                    .with_input_bits(input_bits)
                    .with_output_bits(output_bits)
                    .with_dirty_tracking(dirty),
            )
            .map(AnyFormat::VtdSecond),
            FormatName::VtdFirst => VtdFirst::new(
                VtdFirstConfig::new()
                    .with_five_levels(self.five_levels()?)
                    .with_output_bits(output_bits)
                    .with_dirty_tracking(dirty),
            )
            .map(AnyFormat::VtdFirst),
            FormatName::X86_64 => X86_64::new(
                X86_64Config::new()
                    .with_five_levels(self.five_levels()?)
                    .with_output_bits(output_bits)
                    .with_dirty_tracking(dirty),
            )
            .map(AnyFormat::X86_64),
            FormatName::AmdV1 => AmdV1::new(
                AmdV1Config::new()
                    .with_levels(self.levels.unwrap_or(4))
                    .with_output_bits(output_bits)
                    .with_intermediate_sizes(contiguous)
                    .with_pages_512g(self.pages_512g)
                    .with_dirty_tracking(dirty),
            )
            .map(AnyFormat::AmdV1),
            FormatName::RiscvSv39 => self.riscv(RiscVMode::Sv39, output_bits),
            FormatName::RiscvSv48 => self.riscv(RiscVMode::Sv48, output_bits),
            FormatName::RiscvSv57 => self.riscv(RiscVMode::Sv57, output_bits),
        };
        made.map_err(|unsupported| failure(2, unsupported.to_string()))
    }

    fn riscv(&self, mode: RiscVMode, output_bits: u32) -> Result<AnyFormat, Unsupported> {
        let svnapot = !self.no_runs;
        let config = RiscVConfig::new(mode)
            .with_output_bits(output_bits)
            .with_svnapot(svnapot)
            .with_dirty_tracking(self.dirty);
        RiscV::new(config).map(AnyFormat::RiscV)
    }

    fn granule(&self) -> anyhow::Result<Granule> {
        let Some(size) = self.granule else { return Ok(Granule::SIZE_4K) };
        let found = self.format.granules().iter().find(|granule| granule.bytes() == size.0);
        found.copied().ok_or_else(|| {
            let sizes: Vec<String> =
                self.format.granules().iter().map(Granule::to_string).collect();
            let name = self.format.name();
            failure(2, format!("--granule: {name} has {}", sizes.join(", ")))
        })
    }

    fn five_levels(&self) -> anyhow::Result<bool> {
        match self.levels {
            None | Some(4) => Ok(false),
            Some(5) => Ok(true),
            Some(levels) => {
                let name = self.format.name();
                Err(failure(2, format!("--levels: {name} has 4 or 5, not {levels}")))
            }
        }
    }

    /// Returns an error for an option that the format does not have, instead of ignoring it.
    fn refuse_what_it_has_not(&self) -> anyhow::Result<()> {
        use FormatName::{AmdV1, ArmLpaeS1, ArmLpaeS2, VtdFirst, VtdSecond, X86_64};
        let name = self.format;
        let has_runs = !matches!(name, VtdSecond | VtdFirst | X86_64);
        let refused = [
            ("--input-bits", self.input_bits.is_some(), name.is_arm() || name == VtdSecond),
            (
                "--levels",
                self.levels.is_some(),
                matches!(name, ArmLpaeS2 | AmdV1 | VtdFirst | X86_64),
            ),
            ("--upper", self.upper, name == ArmLpaeS1),
            ("--no-runs", self.no_runs, has_runs),
            ("--pages-512g", self.pages_512g, name == AmdV1),
        ];
        match refused.into_iter().find(|(_, given, has)| *given && !has) {
            Some((option, ..)) => Err(failure(2, format!("{} has no {option}", name.name()))),
            None => Ok(()),
        }
    }
}

/// Returns the manual's name of a level for use in a sentence: `level 2`, `SS-PDE`.
pub(crate) fn level_label<F: Format>(_format: &F, level: u32) -> String {
    let name = F::LEVEL_NAMES[level as usize];
    if name.ends_with(|c: char| c.is_ascii_digit()) { format!("level {name}") } else { name.into() }
}

/// Returns the level with this name.
pub(crate) fn level_of<F: Format>(format: &F, name: &str) -> anyhow::Result<u32> {
    let levels = format.geometry().levels();
    let found =
        (0..levels).find(|level| F::LEVEL_NAMES[*level as usize].eq_ignore_ascii_case(name.trim()));
    found.ok_or_else(|| {
        let names: Vec<&str> = F::LEVEL_NAMES.iter().take(levels as usize).rev().copied().collect();
        failure(2, format!("--level: unknown level '{name}' (expected {})", names.join(", ")))
    })
}

/// Formats 2^`log2` bytes.
pub(crate) fn size(log2: u32) -> String {
    match 1u64.checked_shl(log2).and_then(|bytes| Granule::new(bytes).ok()) {
        Some(size) => size.to_string(),
        None => format!("2^{log2} B"),
    }
}
