//! The table of commands.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::commands;

/// The command line of blindpipe: conversations of people and agents, encrypted end to end.
#[derive(Parser)]
#[command(name = "bp", version, propagate_version = true, after_help = AFTER)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const AFTER: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 not logged in, 4 refused by the service, \
    5 the service is unreachable; `bp ask` exits with 10 and more for the choice.";

/// The heading of the options of all commands, which are the last ones in each help.
const EVERYWHERE: &str = "Options of all commands";

#[derive(Args, Clone)]
pub struct Global {
    /// Print a line of JSON for each item, and errors as JSON.
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
    /// The context to use in place of the current one.
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "BP_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// The address of the service; without --context, the context with this address.
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "BP_URL", value_name = "URL")]
    pub url: Option<String>,
    /// The only certificate authority to trust, in PEM.
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "BP_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Services, and this device's session with each.
    #[command(subcommand)]
    Context(commands::context::Context),
    /// Make an account and this device's keys.
    Register(commands::account::Register),
    /// Log in on this device.
    Login(commands::account::Login),
    /// End the session, and forget this device's keys.
    Logout,
    /// The person who is logged in.
    Whoami,
    /// Agents: their credentials, manifests and keys.
    #[command(subcommand)]
    Agent(commands::agent::Agent),
    /// Make a project with an agent that answers at once.
    Init(commands::init::Init),
    /// Talk with an agent or a person.
    Chat(commands::chat::Chat),
    /// Send a message.
    Send(commands::messages::Send),
    /// Print messages as they come.
    Tail(commands::messages::Tail),
    /// Stop what agents do in a conversation.
    Stop(commands::messages::Stop),
    /// What agents have not acknowledged yet.
    Inbox(commands::messages::Inbox),
    /// Ask people, as an agent, and wait for their answer: for pipelines.
    Ask(commands::ask::Ask),
    /// What waits for this person's decision, and the decisions.
    Approvals(commands::approvals::Approvals),
    /// Proofs of what people decided.
    #[command(subcommand)]
    Receipt(commands::receipt::Command),
    /// Serve the Model Context Protocol: a line to people for every host.
    Mcp(crate::mcp::Mcp),
    /// Agents of other protocols.
    #[command(subcommand)]
    Bridge(crate::bridge::Bridge),
    /// Webhooks of agents: set, tested, and forwarded to this machine.
    #[command(subcommand)]
    Webhook(commands::webhook::Webhook),
    /// This device's keys, and those of others.
    #[command(subcommand)]
    Keys(commands::keys::Keys),
    /// Files of conversations, sealed here.
    #[command(subcommand)]
    File(commands::file::File),
    /// Find conversations, people, agents and files by name.
    Search(commands::search::Search),
    /// The web app that a service gives out.
    #[command(subcommand)]
    App(commands::app::App),
    /// Call any route with the session's token.
    Api(commands::api::Api),
    /// The limits of this account, and what is left.
    Limits,
    /// Look for what is wrong, and say what to do.
    Doctor,
    /// Write the completions of a shell to standard output.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder.
    Man {
        /// The folder, which is made.
        folder: PathBuf,
    },
}

/// The commands, for completions and man pages.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_sound() {
        super::command().debug_assert();
    }

    /// Other processes see arguments, and shells remember them.
    #[test]
    fn no_argument_takes_a_secret() {
        fn check(command: &clap::Command) -> usize {
            let mut files = 0;
            for argument in command.get_arguments() {
                let id = argument.get_id().as_str();
                if ["password", "secret", "token"]
                    .iter()
                    .any(|it| id.contains(it))
                {
                    assert!(id.ends_with("_file"), "{} {id}", command.get_name());
                    files += 1;
                }
            }
            files + command.get_subcommands().map(check).sum::<usize>()
        }
        assert!(check(&super::command()) > 5);
    }

    /// An argument of the name of an option for all commands would be taken for that option.
    #[test]
    fn no_argument_has_the_name_of_an_option_for_all() {
        fn check(command: &clap::Command, all: &[&str]) {
            for one in command.get_subcommands() {
                let own = one.get_arguments().filter(|it| !it.is_global_set());
                for argument in own {
                    let id = argument.get_id().as_str();
                    assert!(!all.contains(&id), "{} {id}", one.get_name());
                }
                check(one, all);
            }
        }
        let command = super::command();
        let all = command.get_arguments().filter(|it| it.is_global_set());
        let all: Vec<_> = all.map(|it| it.get_id().as_str()).collect();
        assert_eq!(all, ["json", "context", "url", "ca_file"]);
        check(&command, &all);
    }
}
