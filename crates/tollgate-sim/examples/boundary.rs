//! What each algorithm lets through around the end of a window, in words.

use tollgate_core::Quota;
use tollgate_sim::{Scenario, Traffic};

fn main() -> Result<(), tollgate_sim::ScenarioError> {
    let quota = Quota::per_minute(10);
    println!("{quota}: ten requests in the last second of a minute, ten in the next second.");
    for lane in Scenario::new(quota, Traffic::Boundary).compare()?.lanes {
        println!(
            "{:15} let {:2} through, at most {:2} in any minute, remembering {} bytes",
            lane.algorithm, lane.admitted, lane.most_in_any_window, lane.bytes_per_key
        );
    }
    Ok(())
}
