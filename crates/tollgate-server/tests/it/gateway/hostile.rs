//! What clients must not get away with.

mod smuggling;

use super::Gateway;

#[test]
fn a_request_goes_through() {
    let gateway = Gateway::start("limits: [{name: all, rate: 10/minute}]");
    let answer = gateway.ask("GET /a?b=c");
    assert_eq!((answer.status, answer.text(), answer.remaining()), (200, "ok".to_owned(), Some(9)));
    let requests = gateway.upstream.requests();
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((&*request.method, &*request.target), ("GET", "/a?b=c"));
    assert!(request.is_whole);
}
