//! Tests of each scheme on the model of a controller in the driver's tests.

#[path = "../../../../crates/devices/nvme/tests/driver/model.rs"]
#[allow(dead_code, reason = "the driver's tests use all of it")]
mod model;

use longshore::domain::backend::Soft;
use longshore::domain::{Bounce, Domain};
use longshore_nvme::{Controller, Options};

use self::model::{Model, Traits};
use super::{Plan, Scheme, run};

#[test]
fn each_scheme_has_the_expected_counts() {
    let soft = Soft::new().unwrap();
    let disk = vec![0; 4 << 20];
    let model = &Model::new(soft.space().session(), Traits::default(), disk);
    let domain = &Domain::builder(soft).free_after(None).build();
    let controller = &Controller::new(domain, model, Options::default()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let plan = Plan {
        block_bytes: 8192,
        depth: 8,
        rounds: 2,
        ios: 100,
        doorbell_batch: 2,
        schemes: Scheme::ALL.to_vec(),
        policy: Bounce::Below(4096),
    };
    let mut rows = Vec::new();
    run(domain, controller, &namespace, &plan, |row| rows.push(row)).unwrap();
    let names: Vec<_> = rows.iter().map(|row| (row.scheme, row.round)).collect();
    assert_eq!(
        names[..5],
        [("map", 0), ("bounce", 0), ("static", 0), ("policy", 0), ("map, batched", 0)]
    );
    assert_eq!((names.len(), names[5]), (10, ("map", 1)));
    for row in &rows {
        assert_eq!((row.ios, row.bytes, row.depth), (100, 819_200, 8));
        let expected = match row.scheme {
            "bounce" => [100, 100, 100, 819_200, 0],
            "static" => [0; 5],
            // There are 16 buffers: eight are unmapped at once, and the rest at the end.
            "map, batched" => [0, 100, 100, 0, row.flushes],
            _ => [0, 100, 100, 0, 100],
        };
        let counts = [row.bounced, row.maps, row.unmaps, row.copied_bytes, row.flushes];
        assert_eq!(counts, expected, "{row:?}");
        assert_eq!(row.pool_peak_bytes, if row.scheme == "bounce" { 2 << 20 } else { 0 });
    }
    assert!(rows[4].flushes < 15, "{:?}", rows[4]);
}
