//! `onehop explain`: the execution of a query, as text, as JSON, or as a self-contained page.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use onehop_engine::{Access, DatabaseOptions, ExplainMode, Explanation, Script};

use crate::args::{ExplainArgs, ExplainFormat};
use crate::exit::Stop;
use crate::{client, settings, statement};

/// Explains a query and writes the result to the requested output.
pub fn run(args: &ExplainArgs) -> Result<(), Stop> {
    settings::effective(&args.set)?;
    let (path, file) = places(args)?;
    let path = client::directory(path.as_deref());
    let (name, text) = match (&args.command, &file) {
        (Some(command), _) => ("-c".to_string(), command.clone()),
        (None, Some(file)) => (file.display().to_string(), read(file)?),
        (None, None) => return Err(Stop::Usage("there is no query: give it with -c, or the file it is in".into())),
    };
    let query = only_statement(&name, &text)?;
    let mode = if args.analyze || args.html.is_some() { ExplainMode::Analyze } else { ExplainMode::Plan };
    // EXPLAIN changes nothing, so it does not create a database either. One in memory is always
    // new.
    let access = if path.is_some() { Access::ReadOnly } else { Access::ReadWrite };
    let options = DatabaseOptions { access, settings: args.set.clone(), ..DatabaseOptions::default() };
    let explanation = explained(path, &options, query, mode)?;
    let written = match (&args.html, args.format) {
        (Some(_), _) => explanation.html(),
        (None, ExplainFormat::Text) => explanation.text(),
        (None, ExplainFormat::Json) => format!("{:#}\n", explanation.json()),
    };
    match &args.output {
        Some(output) => std::fs::write(output, written)
            .map_err(|e| Stop::System(format!("cannot write the explanation to {}", output.display()), e)),
        None => Ok(std::io::stdout().lock().write_all(written.as_bytes())?),
    }
}

/// Explains a query on the engine's threads. This thread listens for Ctrl-C, regardless of their
/// load.
fn explained(
    path: Option<&Path>,
    options: &DatabaseOptions,
    query: &str,
    mode: ExplainMode,
) -> Result<Explanation, Stop> {
    let began = Instant::now();
    let executors = client::executors(options)?;
    let front = onehop_engine::front(1)?;
    let (_database, session) = client::open(path, options)?;
    let query = query.to_string();
    let task = executors.lend(())?.spawn(async move { session.explain(&query, mode).await });
    let outcome = front.block_on(async {
        tokio::select! {
            biased;
            Ok(()) = tokio::signal::ctrl_c() => Err(Stop::Interrupted(began.elapsed())),
            ended = task => ended.map_err(statement::panicked)?.map_err(Stop::from),
        }
    });
    executors.shutdown(client::END_PATIENCE);
    outcome
}

/// Returns the database and the file with the query. Databases are directories, so a file alone is
/// the query's.
fn places(args: &ExplainArgs) -> Result<(Option<PathBuf>, Option<PathBuf>), Stop> {
    let is_script = |path: &Path| path == Path::new("-") || path.is_file();
    let given = args.html.is_some() || args.command.is_some();
    match args.words.as_slice() {
        [] => Ok((None, args.html.clone())),
        [path] if given => Ok((Some(path.clone()), args.html.clone())),
        [file] if is_script(file) => Ok((None, Some(file.clone()))),
        [path] => Ok((Some(path.clone()), None)),
        [path, file] if !given => Ok((Some(path.clone()), Some(file.clone()))),
        [_, file, ..] => Err(Stop::Usage(format!("there are two queries: the other is in {}", file.display()))),
    }
}

fn read(file: &Path) -> Result<String, Stop> {
    let mut text = String::new();
    let outcome = match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)),
    };
    outcome.map_err(|e| Stop::System(format!("cannot read the query in {}", file.display()), e))?;
    Ok(text)
}

fn only_statement<'a>(name: &str, text: &'a str) -> Result<&'a str, Stop> {
    let mut statements = Script::new(text);
    match (statements.next(), statements.count()) {
        (Some(statement), 0) => Ok(statement),
        (None, _) => Err(Stop::Usage(format!("there is no query in {name}"))),
        (Some(_), more) => {
            Err(Stop::Usage(format!("{name} has {} statements, and one query is explained at a time", more + 1)))
        }
    }
}
