//! The shape of a request and of a decision.

use std::collections::{BTreeMap, BTreeSet};

use blindpipe_protocol::{
    agents::Sensitivity,
    grants::{DecideGrant, Decision, RequestGrant},
    text::Scope,
};

use crate::{
    error::{Code, Error, Result},
    limits::quotas::{GRANT_TTL_SECONDS, MAX_GRANT_SCOPES},
};

/// The requested scopes, sorted, each once.
pub fn requested(body: &RequestGrant) -> Result<BTreeSet<String>> {
    if !(1..=MAX_GRANT_SCOPES).contains(&body.scopes.len()) {
        return Err(Error::field("scopes", "length", "must name 1 to 16 scopes"));
    }
    if body
        .ttl_seconds
        .is_some_and(|ttl| !GRANT_TTL_SECONDS.contains(&ttl))
    {
        return Err(Error::field(
            "ttl_seconds",
            "range",
            "must be from 60 to 31536000",
        ));
    }
    Ok(names(&body.scopes))
}

fn names(scopes: &[Scope]) -> BTreeSet<String> {
    scopes.iter().map(|scope| scope.0.clone()).collect()
}

/// The sensitivity of each scope, in order. Errors: `SCOPE_NOT_DECLARED`.
pub fn sensitivities(
    scopes: &BTreeSet<String>,
    declared: &BTreeMap<String, Sensitivity>,
) -> Result<Vec<Sensitivity>> {
    let missing: Vec<&str> = scopes
        .iter()
        .filter(|scope| !declared.contains_key(*scope))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        return Err(Error::from(Code::ScopeNotDeclared).with("scopes", missing));
    }
    Ok(scopes
        .iter()
        .filter_map(|scope| declared.get(scope).copied())
        .collect())
}

/// The scopes that a decision grants; none if it denies.
pub fn granted(body: &DecideGrant, requested: &[String]) -> Result<Option<Vec<String>>> {
    let fault = |rule, message| Err(Error::field("scopes", rule, message));
    match (body.decision, &body.scopes) {
        (Decision::Deny, None) => Ok(None),
        (Decision::Deny, Some(_)) => fault("unexpected", "a denial grants no scopes"),
        (Decision::Approve, None) => Ok(Some(requested.to_vec())),
        (Decision::Approve, Some(scopes)) => {
            let scopes = names(scopes);
            if scopes.is_empty() {
                return fault("length", "must name a scope");
            }
            if scopes.iter().any(|scope| !requested.contains(scope)) {
                return fault("value", "must be some of the requested scopes");
            }
            Ok(Some(scopes.into_iter().collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(decision: Decision, scopes: Option<&[&str]>) -> Result<Option<Vec<String>>> {
        let scopes = scopes.map(|some| {
            some.iter()
                .map(|scope| Scope((*scope).to_owned()))
                .collect()
        });
        granted(
            &DecideGrant { decision, scopes },
            &["a".to_owned(), "b".to_owned()],
        )
    }

    #[test]
    fn an_approval_grants_all_or_some_and_a_denial_nothing() {
        let all = decide(Decision::Approve, None).expect("valid");
        assert_eq!(all, Some(vec!["a".to_owned(), "b".to_owned()]));
        let some = decide(Decision::Approve, Some(&["b", "b"])).expect("valid");
        assert_eq!(some, Some(vec!["b".to_owned()]));
        assert_eq!(decide(Decision::Deny, None).expect("valid"), None);
        for (decision, scopes) in [
            (Decision::Approve, &[][..]),
            (Decision::Approve, &["c"]),
            (Decision::Deny, &["a"]),
        ] {
            assert!(decide(decision, Some(scopes)).is_err(), "{scopes:?}");
        }
    }
}
