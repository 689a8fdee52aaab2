//! `tollgate schema`

use serde_json::Value;

use crate::tollgate;

#[test]
fn the_schema_is_json_and_knows_every_section_of_a_policy() {
    let run = tollgate(&["schema"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let schema: Value = serde_json::from_str(&run.stdout).expect("it is JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let sections = schema["properties"].as_object().expect("a policy is an object");
    for section in ["limits", "tenants", "store", "listen", "exempt", "deny", "client_ip"] {
        assert!(sections.contains_key(section), "{section}");
    }
    assert_eq!(schema["additionalProperties"], false, "an unknown section is a mistake");
}

#[test]
fn the_schema_takes_no_arguments() {
    let run = tollgate(&["schema", "policy.yaml"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
}
