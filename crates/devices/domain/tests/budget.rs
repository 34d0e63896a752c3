//! All domains of a process share one budget. No other test may run in this process.

use longshore_domain::backend::Soft;
use longshore_domain::{
    Bounce, Direction, DmaPoolOptions, Domain, Error, PoolError, WhenFull, process_pool_bytes,
    set_process_budget,
};
use longshore_heap::Heap;
use std::time::Duration;

#[test]
fn thirty_two_domains_keep_within_one_budget() {
    const CHUNK: u64 = 2 << 20;
    set_process_budget(10 * CHUNK);
    let domain = |_| {
        let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always).free_after(None);
        builder.pool_limit(u64::MAX, WhenFull::Refuse).build()
    };
    let domains: Vec<_> = (0..32).map(domain).collect();
    let map = |domain: &Domain| {
        let mapping = domain.map(Heap::Memfd.allocate(4096).unwrap(), Direction::ToDevice);
        mapping.map(drop).map_err(|failed| *failed.error)
    };
    let outcomes: Vec<_> = domains.iter().map(map).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 10);
    for outcome in outcomes.into_iter().skip(10) {
        let refused = outcome.unwrap_err();
        let Error::Pool(PoolError::Limit { limit_bytes, .. }) = refused else {
            panic!("{refused}")
        };
        assert_eq!(limit_bytes, 10 * CHUNK);
    }
    assert_eq!(process_pool_bytes(), 10 * CHUNK);
    // Another domain can use what one gives back.
    assert_eq!(domains[3].shrink(Duration::ZERO).unwrap(), CHUNK);
    map(&domains[31]).unwrap();
    assert!(map(&domains[30]).is_err());
    drop(domains);
    assert_eq!(process_pool_bytes(), 0);

    // The state of an element is charged, too. It can be longer than the element.
    let domain = domain(0);
    let options = DmaPoolOptions::new().limit(1 << 20);
    let pool = domain.dma_pool(1, 1, options).unwrap();
    let refused = pool.take().unwrap_err();
    assert!(matches!(refused, Error::Pool(PoolError::Limit { .. })), "{refused}");
    assert_eq!(process_pool_bytes(), 0);
    let pool = domain.dma_pool(1, 1, options.limit(4096)).unwrap();
    drop(pool.take().unwrap());
    assert!(process_pool_bytes() > 20 * 4096, "{}", process_pool_bytes());
    drop(pool);
    assert_eq!(process_pool_bytes(), 0);
}
