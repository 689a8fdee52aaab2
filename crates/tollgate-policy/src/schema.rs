//! The shape of a policy, for editors.

/// A JSON Schema (draft 2020-12) of the policy file, and of the tenants file under
/// `#/$defs/tenants_file`. It tells an editor which fields there are and what they hold; only
/// [`Policy::parse`](crate::Policy::parse) knows whether they fit together.
pub fn schema() -> &'static str {
    include_str!("../policy.schema.json")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::decode::FIELDS;

    fn root() -> Value {
        serde_json::from_str(schema()).unwrap()
    }

    #[test]
    fn the_schema_names_every_field_that_is_read_and_no_other() {
        let root = root();
        for (map, fields) in FIELDS {
            let shape = if map == "policy" { &root } else { &root["$defs"][map] };
            let properties = shape["properties"].as_object();
            let properties = properties.unwrap_or_else(|| panic!("{map} has no properties"));
            let named: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            let read: BTreeSet<&str> = fields.iter().copied().collect();
            assert_eq!(named, read, "fields of {map}");
            assert_eq!(shape["additionalProperties"], Value::Bool(false), "{map}");
        }
    }

    #[test]
    fn off_stands_alone_among_generations_of_headers() {
        let root = root();
        let forms = root["properties"]["headers"]["anyOf"].as_array().unwrap();
        let with_off = forms.iter().filter(|form| form.to_string().contains("\"off\""));
        let lists: Vec<&Value> = with_off.filter(|form| form["type"] == "array").collect();
        assert_eq!(lists.len(), 1, "{lists:?}");
        assert_eq!(
            (&lists[0]["items"]["const"], &lists[0]["maxItems"]),
            (&"off".into(), &1.into())
        );
    }

    #[test]
    fn the_schema_refers_to_nothing_that_is_not_there() {
        fn check(node: &Value, root: &Value) {
            if let Some(reference) = node.get("$ref").and_then(Value::as_str) {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(root.pointer(pointer).is_some(), "{reference}");
            }
            match node {
                Value::Object(fields) => fields.values().for_each(|node| check(node, root)),
                Value::Array(list) => list.iter().for_each(|node| check(node, root)),
                _ => {}
            }
        }
        let root = root();
        check(&root, &root);
        assert_eq!(root["$schema"], "https://json-schema.org/draft/2020-12/schema");
    }
}
