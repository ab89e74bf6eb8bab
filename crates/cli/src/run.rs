//! Runs the parsed command line.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use onehop_engine::{Access, DatabaseOptions};

use crate::args::{self, Args, BenchCommand, Command, Input, PipeArgs, SqlArgs, Suite};
use crate::client::{self, Client};
use crate::exit::{Exit, Failure, Stop};
use crate::shell::dot::Flow;
use crate::terminal::Terminal;
use crate::view::View;
use crate::{
    backup, check, doctor, explain, functions, gpu, lab, message, pipe, rados, script, serve, settings, shell, store,
    user,
};

/// Runs a command and reports its failure.
pub fn run(args: Args) -> Exit {
    let terminal = Terminal::detect();
    let ended = match args.command {
        Some(Command::Check(args)) => check::run(&args, &terminal).map_err(Failure::from),
        Some(Command::Backup(args)) => backup::run(&args, &terminal).map_err(Failure::from),
        Some(Command::Restore(args)) => backup::run_restore(&args, &terminal).map_err(Failure::from),
        Some(Command::Doctor(args)) => doctor::run(&args, &terminal).map_err(Failure::from),
        Some(Command::Gen(args)) => lab::generate::run(&args, &terminal).map_err(Failure::from),
        Some(Command::Bench(what)) => bench(what, &terminal).map_err(Failure::from),
        Some(Command::Explain(args)) => explain::run(&args).map_err(Failure::from),
        Some(Command::Store(command)) => store::run(&command).map_err(Failure::from),
        Some(Command::Rados(command)) => rados::run(&command, &terminal).map_err(Failure::from),
        Some(Command::Serve(args)) => serve::run(&args).map_err(Failure::from),
        Some(Command::User(command)) => user::run(&command).map_err(Failure::from),
        Some(Command::Pipe(args)) => pipe(args).map_err(Failure::from),
        Some(Command::RunFunctions) => {
            let served = functions::serve(functions::first_gpu);
            served.map_err(|e| Stop::System("cannot talk to who wants functions run".into(), e).into())
        }
        Some(Command::Completions { shell }) => completions(shell).map_err(Failure::from),
        None => sql(&args.sql, terminal),
    };
    match ended {
        Ok(()) => Exit::Done,
        Err(failure) => {
            message::report(&failure, &terminal);
            failure.stop.exit()
        }
    }
}

fn bench(what: BenchCommand, terminal: &Terminal) -> Result<(), Stop> {
    match what {
        BenchCommand::Ssb(args) => lab::bench::run(Suite::Ssb, &args, terminal),
        BenchCommand::Tpch(args) => lab::bench::run(Suite::Tpch, &args, terminal),
        BenchCommand::Io(args) => lab::io::run(&args, terminal),
        BenchCommand::Q6(args) => lab::q6::run(&args, terminal),
        BenchCommand::Commit(args) => lab::commit::run(&args, terminal),
        BenchCommand::Logreg(args) => lab::logreg::run(&args, terminal),
        BenchCommand::Osp(args) => lab::osp::run(&args, terminal),
    }
}

fn pipe(args: PipeArgs) -> Result<(), Stop> {
    let access = if args.readonly { Access::ReadOnly } else { Access::ReadWrite };
    settings::effective(&args.set)?;
    let options = DatabaseOptions { access, settings: args.set, ..DatabaseOptions::default() };
    let executors = client::executors(&options)?;
    let (_database, session) = client::open(args.path.as_deref(), &options)?;
    // Responses may be large: they are buffered, and flushed after each.
    let output = io::BufWriter::new(io::stdout().lock());
    pipe::run(&executors, &session, io::stdin().lock(), output)
}

fn completions(shell: clap_complete::Shell) -> Result<(), Stop> {
    // Generated in memory first, because the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "onehop", &mut script);
    Ok(io::Write::write_all(&mut io::stdout(), &script)?)
}

fn sql(args: &SqlArgs, terminal: Terminal) -> Result<(), Failure> {
    let access = if args.readonly { Access::ReadOnly } else { Access::ReadWrite };
    let (settings, segments) = (args.settings(), args.segments.clone());
    let options = DatabaseOptions { access, settings, segments, ..DatabaseOptions::default() };
    settings::effective(&options.settings)?;
    if args.require_gpu {
        // Checked before anything is opened or created.
        gpu::require(&*onehop_cuda::devices(None, onehop_cuda::Ending::AtOnce), None)?;
    }
    let mut client = Client::open(args.path.as_deref(), options, View::new(args, terminal))?;
    let ended = run_inputs(&mut client, &args.inputs);
    client.close();
    ended
}

fn run_inputs(client: &mut Client, inputs: &[Input]) -> Result<(), Failure> {
    if inputs.is_empty() && client.view.terminal.stdin {
        return shell::run(client);
    }
    if inputs.is_empty() {
        return script::run(client, "<stdin>", io::stdin().lock()).map(|_| ());
    }
    for input in inputs {
        if run_input(client, input)? == Flow::Quit {
            break;
        }
    }
    Ok(())
}

fn run_input(client: &mut Client, input: &Input) -> Result<Flow, Failure> {
    match input {
        Input::Text(text) => script::run(client, "-c", text.as_bytes()),
        Input::File(path) if path == Path::new("-") => script::run(client, "<stdin>", io::stdin().lock()),
        Input::File(path) => run_file(client, path),
    }
}

/// Runs a script file.
pub fn run_file(client: &mut Client, path: &Path) -> Result<Flow, Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Stop::System(format!("cannot read the script {name}"), e))?;
    script::run(client, &name, BufReader::new(file))
}
