//! Messages survive encoding and parsing, and incomplete messages are refused.

use longshore_vfio_user::Errno;
use longshore_vfio_user::MappableArea;
use longshore_vfio_user::wire::{
    Command, DeviceInfo, DmaAccess, DmaMap, DmaUnmap, Feature, IrqData, IrqInfo, MigrationData,
    RegionAccess, RegionInfo, RegionWriteMulti, Request, SetIrqs, SmallWrite, SmallWrites,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Encodes and parses a request, and checks that longer and shorter payloads are refused.
fn round_trip(request: &Request<'_>) {
    let mut payload = request.encode();
    let command = request.command().number();
    assert_eq!(Request::parse(command, &payload).as_ref(), Ok(request));
    // Most payloads have a fixed length or contain it; only those that end with bytes of any number may
    // be longer.
    let is_open = matches!(request, Request::Version { .. } | Request::DeviceFeature(_));
    payload.push(0);
    assert_eq!(Request::parse(command, &payload).is_ok(), is_open, "{request:?} and a byte");
    payload.pop();
    for len in 0..payload.len() {
        let cut = Request::parse(command, &payload[..len]);
        match request {
            Request::Version { .. } => assert_eq!(cut.is_ok(), len >= 4),
            Request::DeviceFeature(_) => assert_eq!(cut.is_ok(), len >= 8),
            _ => assert_eq!(cut, Err(Errno::EINVAL), "{request:?} cut to {len}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 128 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_command_survives_encoding_and_parsing(
        (a, b, c) in (any::<u64>(), any::<u64>(), any::<u64>()),
        (d, e, f) in (any::<u32>(), any::<u32>(), 64_u32..),
        data in vec(any::<u8>(), 0..40),
    ) {
        let (major, minor) = (d as u16, e as u16);
        round_trip(&Request::Version { major, minor, capabilities: &data });
        round_trip(&Request::DmaMap(DmaMap { flags: d, offset: a, iova: b, len_bytes: c }));
        round_trip(&Request::DmaUnmap(DmaUnmap { argsz: f, flags: e, iova: a, len_bytes: b }));
        round_trip(&Request::DeviceGetInfo { argsz: f });
        round_trip(&Request::DeviceGetRegionInfo { argsz: f, index: d });
        round_trip(&Request::DeviceGetRegionIoFds { argsz: f, index: d });
        round_trip(&Request::DeviceGetIrqInfo { argsz: f, index: e });
        for action in [SetIrqs::MASK, SetIrqs::UNMASK, SetIrqs::TRIGGER] {
            for data in [IrqData::None, IrqData::EventFds] {
                let set = SetIrqs { action, index: d, start: e, count: f, data };
                round_trip(&Request::DeviceSetIrqs(set));
            }
            let (count, data) = (data.len() as u32, IrqData::Bools(&data));
            let set = SetIrqs { action, index: d, start: e, count, data };
            round_trip(&Request::DeviceSetIrqs(set));
        }
        round_trip(&Request::RegionRead { offset: a, region: d, count: e });
        round_trip(&Request::RegionWrite { offset: a, region: d, data: &data });
        round_trip(&Request::DeviceReset);
        round_trip(&Request::DeviceFeature(Feature { argsz: f, flags: d, data: &data }));
        round_trip(&Request::MigrationDataRead { argsz: f, size: e });
        round_trip(&Request::MigrationDataWrite { data: &data });
        let bytes = |at: usize| std::array::from_fn(|byte| data.get(at + byte).copied().unwrap_or(0));
        let writes: Vec<SmallWrite> = (0..data.len() / 8)
            .map(|at| SmallWrite { offset: a, region: d, count: e, data: bytes(at) })
            .collect();
        let payload = SmallWrites::encode(&writes);
        let many = Request::parse(Command::RegionWriteMulti.number(), &payload).unwrap();
        round_trip(&many);
        let Request::RegionWriteMulti(many) = many else { panic!("{many:?}") };
        prop_assert_eq!(many.iter().collect::<Vec<_>>(), writes);
    }

    #[test]
    fn every_reply_survives_encoding_and_parsing(
        (a, b) in (any::<u64>(), any::<u64>()),
        (d, e, f) in (any::<u32>(), any::<u32>(), any::<u32>()),
        areas in vec((any::<u64>(), any::<u64>()), 0..5),
        data in vec(any::<u8>(), 0..40),
    ) {
        let info = DeviceInfo { flags: d, regions: e, irqs: f };
        prop_assert_eq!(DeviceInfo::parse(&info.encode()), Ok(info));
        let info = IrqInfo { flags: d, index: e, count: f };
        prop_assert_eq!(IrqInfo::parse(&info.encode()), Ok(info));
        let access = RegionAccess { offset: a, region: d, count: e, data: &data };
        assert_eq!(RegionAccess::parse(&access.encode()), Ok(access));
        let multi = RegionWriteMulti { done: a };
        prop_assert_eq!(RegionWriteMulti::parse(&multi.encode()), Ok(multi));
        let access = DmaAccess { iova: a, count: b, data: &data };
        assert_eq!(DmaAccess::parse(&access.encode()), Ok(access));
        let state = MigrationData { data: &data };
        assert_eq!(MigrationData::parse(&state.encode()), Ok(state));

        let area = |(offset, len_bytes): &(u64, u64)| {
            MappableArea { offset: *offset, len_bytes: *len_bytes }
        };
        let areas: Vec<MappableArea> = areas.iter().map(area).collect();
        let argsz = if areas.is_empty() { 32 } else { 48 + 16 * areas.len() as u32 };
        let info = RegionInfo {
            argsz, flags: d & 7, index: e, len_bytes: a, offset: b, areas: areas.clone(),
        };
        assert_eq!(RegionInfo::parse(&info.encode(argsz)).as_ref(), Ok(&info));
        // Without room for the areas, the reply has the length that is needed.
        let cut = RegionInfo::parse(&info.encode(argsz - 1).split_off(0)).unwrap();
        prop_assert_eq!(cut.argsz, argsz);
        prop_assert!(cut.areas.is_empty());
    }

    #[test]
    fn random_payloads_are_parsed_or_refused(command in 0_u16..20, payload in vec(any::<u8>(), 0..80)) {
        if let Ok(request) = Request::parse(command, &payload) {
            prop_assert_eq!(request.command().number(), command);
        }
        let _ = RegionInfo::parse(&payload);
    }
}

#[test]
fn lists_of_capabilities_that_lead_backwards_or_out_are_refused() {
    let area = MappableArea { offset: 0x1000, len_bytes: 0x1000 };
    let info = RegionInfo {
        argsz: 64,
        flags: RegionInfo::MMAP,
        index: 0,
        len_bytes: 0x4000,
        offset: 0,
        areas: vec![area],
    };
    let payload = info.encode(64);
    for (at, value) in [(12, 31_u32), (12, 60), (12, 1 << 31), (36, 32), (36, 64), (40, u32::MAX)] {
        let mut payload = payload.clone();
        payload[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        assert_eq!(RegionInfo::parse(&payload), Err(Errno::EINVAL), "{value} at {at}");
    }
    // An unknown capability is ignored.
    let mut unknown = payload;
    unknown[32..34].copy_from_slice(&77_u16.to_ne_bytes());
    assert_eq!(RegionInfo::parse(&unknown).unwrap().areas, []);
}

#[test]
fn commands_that_no_client_sends_are_refused() {
    for command in [Command::DmaRead.number(), Command::DmaWrite.number(), 0, 14, 19, 0xffff] {
        assert_eq!(Request::parse(command, &[0; 64]), Err(Errno::ENOSYS), "{command}");
    }
}
