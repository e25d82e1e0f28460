//! Rules for the whole schema: its committed dump, its indexes, the plans of retention.

use std::{collections::BTreeSet, fs, path::PathBuf};

use blindpipe::{db::migrate, features::announcements::Stage, ids::PrincipalKind};
use blindpipe_protocol::{
    access_log::AccessKind,
    accounts::Scene,
    agents::{AgentState, DeliveryMode, Sensitivity},
    approvals::{ApprovalDecision, ApprovalKind, ApprovalReason, ApprovalState},
    conversations::{ConversationKind, Encryption, Role},
    files::UploadState,
    grants::GrantStatus,
    groups::Visibility,
    push::PushKind,
    relations::RelationState,
    revocation::RevocationReason,
    shares::ShareKind,
    tool_calls::ToolCallStatus,
    webhooks::{DeliveryStatus, WebhookStatus},
};
use tokio_postgres::Client;

use super::sources::statements;
use crate::support::{connect, empty_database};

const HEADER: &str = "-- The schema after all migrations. Written by `make schema`; a test compares it. \
                      The reasons stand in migrations/.\n\n";

async fn migrated() -> Client {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    connect(&url).await
}

async fn dump(client: &Client) -> String {
    let rows = client
        .query(include_str!("schema_dump.sql"), &[])
        .await
        .expect("a catalog");
    let statements: Vec<String> = rows.iter().map(|row| row.get("statement")).collect();
    format!("{HEADER}{}\n", statements.join("\n\n"))
}

/// A function that runs as the owner would else take its caller's temporary tables for the schema's.
#[tokio::test(flavor = "multi_thread")]
async fn functions_of_the_owner_see_no_temporary_tables() {
    let client = migrated().await;
    let sql = "select proname::text, coalesce(array_to_string(proconfig, ';'), '') as settings from pg_proc
               where prosecdef and pronamespace = 'public'::regnamespace";
    let functions = client.query(sql, &[]).await.expect("a catalog");
    assert!(functions.len() >= 7, "{}", functions.len());
    for function in functions {
        let (name, settings): (&str, &str) = (function.get(0), function.get(1));
        assert_eq!(settings, "search_path=public, pg_temp", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_committed_dump_makes_the_schema_of_the_migrations() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("sql/schema.sql");
    let migrated = dump(&migrated().await).await;
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &migrated).expect("written");
    }
    // Loaded rather than compared as text: releases of Postgres print expressions differently.
    let loaded = connect(&empty_database().await).await;
    let committed = fs::read_to_string(&path).expect("the dump");
    loaded.batch_execute(&committed).await.expect("valid SQL");
    let committed = dump(&loaded).await;
    let line = committed
        .lines()
        .zip(migrated.lines())
        .find(|(committed, migrated)| committed != migrated);
    assert_eq!(
        line, None,
        "run `make schema`: (sql/schema.sql, migrations)"
    );
    assert_eq!(committed.len(), migrated.len(), "run `make schema`");
}

/// Without such an index a delete or a new key on the other side reads the whole table.
#[tokio::test(flavor = "multi_thread")]
async fn every_foreign_key_has_an_index_that_begins_with_its_columns() {
    let client = migrated().await;
    let rows = client
        .query(
            "select c.conrelid::regclass::text || ': ' || c.conname as foreign_key
            from pg_constraint c
            where c.contype = 'f' and not exists (
                select from pg_index i
                where i.indrelid = c.conrelid and i.indisvalid
                    and (i.indkey::int2[])[0:cardinality(c.conkey) - 1] @> c.conkey
                    -- Null refers to nothing, so an index may leave it out.
                    and (i.indpred is null or pg_get_expr(i.indpred, i.indrelid) = (
                        select format('(%I IS NOT NULL)', a.attname) from pg_attribute a
                        where a.attrelid = c.conrelid and a.attnum = c.conkey[1])))
            order by 1",
            &[],
        )
        .await
        .expect("a catalog");
    let missing: Vec<String> = rows.iter().map(|row| row.get("foreign_key")).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// The name of a column's check, and the words of the enum.
fn row<T: Copy>(
    check: &'static str,
    all: &[T],
    word: fn(T) -> &'static str,
) -> (&'static str, BTreeSet<&'static str>) {
    (check, all.iter().map(|one| word(*one)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_enums_of_the_code_are_the_checks_of_the_columns() {
    let client = migrated().await;
    let enums = [
        row("access_log_kind_check", AccessKind::ALL, AccessKind::as_str),
        row(
            "agent_delivery_mode_check",
            DeliveryMode::ALL,
            DeliveryMode::as_str,
        ),
        row("agent_grant_status", GrantStatus::ALL, GrantStatus::as_str),
        row("agent_state", AgentState::ALL, AgentState::as_str),
        row(
            "agent_token_revoke_reason_check",
            RevocationReason::ALL,
            RevocationReason::as_str,
        ),
        row(
            "announcement_principal_kind_check",
            PrincipalKind::ALL,
            PrincipalKind::as_str,
        ),
        row("announcement_stage_check", Stage::ALL, Stage::row),
        row(
            "approval_asked_decision",
            ApprovalDecision::ALL,
            ApprovalDecision::as_str,
        ),
        row("approval_kind", ApprovalKind::ALL, ApprovalKind::as_str),
        row(
            "approval_reason",
            ApprovalReason::ALL,
            ApprovalReason::as_str,
        ),
        row("approval_state", ApprovalState::ALL, ApprovalState::as_str),
        row(
            "block_blocked_kind_check",
            PrincipalKind::ALL,
            PrincipalKind::as_str,
        ),
        row(
            "conversation_encryption_check",
            Encryption::ALL,
            Encryption::as_str,
        ),
        row(
            "conversation_kind_check",
            ConversationKind::ALL,
            ConversationKind::as_str,
        ),
        row("email_code_scene_check", Scene::ALL, Scene::as_str),
        row(
            "member_principal_kind_check",
            PrincipalKind::ALL,
            PrincipalKind::as_str,
        ),
        row("member_role_check", Role::ALL, Role::as_str),
        row(
            "member_visibility_check",
            Visibility::ALL,
            Visibility::as_str,
        ),
        row(
            "public_key_principal_kind_check",
            PrincipalKind::ALL,
            PrincipalKind::as_str,
        ),
        row(
            "push_subscription_kind_check",
            PushKind::ALL,
            PushKind::as_str,
        ),
        row(
            "relation_state_check",
            RelationState::ALL,
            RelationState::as_str,
        ),
        row(
            "session_revoke_reason_check",
            RevocationReason::ALL,
            RevocationReason::as_str,
        ),
        row("share_kind_check", ShareKind::ALL, ShareKind::as_str),
        row(
            "tool_call_sensitivity_check",
            Sensitivity::ALL,
            Sensitivity::as_str,
        ),
        row(
            "tool_call_status",
            ToolCallStatus::ALL,
            ToolCallStatus::as_str,
        ),
        row("upload_state_check", UploadState::ALL, UploadState::as_str),
        row(
            "upload_uploader_kind_check",
            PrincipalKind::ALL,
            PrincipalKind::as_str,
        ),
        row(
            "webhook_delivery_status_check",
            DeliveryStatus::ALL,
            DeliveryStatus::as_str,
        ),
        row(
            "webhook_status_check",
            WebhookStatus::ALL,
            WebhookStatus::as_str,
        ),
    ];
    let checks = client
        .query(
            "select conname::text as name, pg_get_constraintdef(oid) as definition from pg_constraint
            where contype = 'c' and connamespace = 'public'::regnamespace
                and pg_get_constraintdef(oid) like '%ARRAY[%' order by conname",
            &[],
        )
        .await
        .expect("a catalog");
    assert_eq!(checks.len(), enums.len());
    for (row, (name, words)) in checks.iter().zip(enums) {
        assert_eq!(row.get::<_, &str>("name"), name);
        let definition: &str = row.get("definition");
        let allowed: BTreeSet<&str> = definition.split('\'').skip(1).step_by(2).collect();
        assert_eq!(allowed, words, "{name}");
    }
}

/// However full a table is, a batch reads the rows that it deletes and no others.
#[tokio::test(flavor = "multi_thread")]
async fn retention_walks_its_tables_by_age() {
    let client = migrated().await;
    for (name, index) in [
        ("inbox.expire_entries", "inbox_entry_age"),
        ("inbox.expire_events", "event_age"),
        ("messages.forget_keys", "idempotency_age"),
    ] {
        let (_, sql) = statements()
            .into_iter()
            .find(|(_, sql)| sql.starts_with(&format!("-- {name}\n")))
            .expect(name);
        client
            .batch_execute("set enable_seqscan = off; set enable_bitmapscan = off")
            .await
            .expect("set");
        let explain = format!("explain {}", sql.replace("$1", "30").replace("$2", "500"));
        let plan: Vec<String> = client
            .query(&explain, &[])
            .await
            .expect(name)
            .iter()
            .map(|row| row.get("QUERY PLAN"))
            .collect();
        let plan = plan.join("\n");
        assert!(
            plan.contains(&format!("Index Scan using {index}")),
            "{plan}"
        );
        assert!(!plan.contains("Sort"), "{plan}");
    }
}
