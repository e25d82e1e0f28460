//! Sign-in, credentials and their end.

mod after_a_theft;
mod agent_token_cost;
mod agent_token_faults;
mod attacks_auth;
mod attacks_jwt;
mod attacks_passwords;
mod attacks_tokens;
mod human_checks;
mod login_lockout;
mod mail;
mod new_device_mail;
mod passkeys;
mod passkeys_in_browser;
mod profiles;
mod reauth;
mod revocation_races;
mod secret_rotation;
mod sessions;
mod stale_acks;
mod timing;
mod turnstile;
mod undo;
