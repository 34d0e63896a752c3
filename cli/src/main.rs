//! The `longshore` command. See `longshore --help`.

mod args;
mod attach;
mod cat;
mod choices;
mod doctor;
mod evict;
mod exec;
mod exit;
mod generate;
mod inspect;
mod load;
mod ls;
mod ls_published;
mod make_model;
mod output;
mod program;
mod progress;
mod pt;
mod publish;
mod rate_limit;
mod repack;
mod serve;
mod serve_log;
mod serve_publishing;
mod serve_remote;
mod signals;
mod sources;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => exit::command_line(&error),
    };
    let (outcome, json) = match cli.command {
        Command::Load(args) => {
            let json = args.json;
            (load::run(&args), json)
        }
        Command::Inspect(args) => {
            let json = args.json;
            (inspect::run(&args), json)
        }
        Command::Cat(args) => (cat::run(&args), args.json),
        Command::Publish(args) => {
            let json = args.json;
            (publish::run(&args), json)
        }
        Command::Evict(args) => (evict::run(&args), args.json),
        Command::Pin(args) => (evict::run_pin(&args), args.json),
        Command::Exec(args) => (exec::run(&args), false),
        Command::Repack(args) => (repack::run(&args), args.json),
        Command::Serve(args) => {
            let json = args.json;
            (serve::run(args), json)
        }
        Command::Attach(args) => (attach::run(&args), args.json),
        Command::Ls(args) => (ls::run(&args), args.json),
        Command::Doctor(args) => (doctor::run(&args), args.json),
        Command::Pt(args) => (pt::run(&args), args.json()),
        Command::MakeModel(args) => (make_model::run(&args), false),
        Command::Completions(args) => (generate::completions(&args), false),
        Command::Man(args) => (generate::man(&args), false),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, json),
    }
}
