//! Processes that race for one limit.

use tollgate_core::Algorithm;
use tollgate_harness::{Cluster, Flavour, Server};
use tollgate_store::redis::Servers;

use super::YEAR;
use super::worker::{Job, Worker};
use crate::places::settings;

const PROCESSES: usize = 8;
const UNITS: u32 = 200;

fn exactly_the_limit_is_admitted(servers: Servers) {
    let settings = settings(servers);
    let start = |_| Worker::start(&settings, None);
    let mut workers: Vec<Worker> = (0..PROCESSES).map(start).collect();
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let job = Job { algorithm, key, count: UNITS, period: YEAR, attempts: UNITS };
        // So that nobody is still starting when the others race.
        workers.iter_mut().for_each(|worker| worker.ask(&Job { count: 0, attempts: 1, ..job }));
        workers.iter_mut().for_each(|worker| assert_eq!(worker.hear().admitted, 0));
        workers.iter_mut().for_each(|worker| worker.ask(&job));
        let done: Vec<_> = workers.iter_mut().map(Worker::hear).collect();
        assert!(done.iter().all(|it| it.settled == 0), "{algorithm}: {done:?}");
        let admitted: u32 = done.iter().map(|it| it.admitted).sum();
        assert_eq!(admitted, UNITS, "{algorithm}: {done:?}");
        let took_part = done.iter().filter(|it| it.admitted > 0).count();
        assert!(took_part > 1, "{algorithm}: there was no race: {done:?}");
    }
}

#[test]
fn eight_processes_admit_exactly_the_limit_on_one_server() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        exactly_the_limit_is_admitted(Servers::Single(server.url()));
    }
}

#[test]
fn eight_processes_admit_exactly_the_limit_on_a_cluster() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour);
        exactly_the_limit_is_admitted(Servers::Cluster(cluster.urls()));
    }
}
