//! Rate limit policies: YAML text to a compiled policy, with every mistake at its place.
