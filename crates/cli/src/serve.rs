//! `onehop serve`: the engine's threads, and others that look after connections.

use std::io;
use std::path::Path;

use onehop_engine::{Access, DatabaseOptions};
use onehop_server::{LogTo, Options, Server, TlsFiles, Users};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::ServeArgs;
use crate::client;
use crate::exit::Stop;
use crate::settings;
use crate::terminal::note;

/// Threads that look after connections: they encode rows besides.
const FRONT_THREADS: usize = 4;

/// Serves until it is told to end.
pub fn run(args: &ServeArgs) -> Result<(), Stop> {
    let access = if args.readonly { Access::ReadOnly } else { Access::ReadWrite };
    settings::effective(&args.set)?;
    let options = DatabaseOptions { access, settings: args.set.clone(), ..DatabaseOptions::default() };
    let workers = client::runtime(&options)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(FRONT_THREADS);
    let front = Builder::new_multi_thread().worker_threads(threads).thread_name("onehop-front").enable_all().build();
    let front = front.map_err(|e| Stop::System("cannot start threads".into(), e))?;
    let path = client::directory(args.path.as_deref());
    let (database, session) = client::open(path, &options)?;
    drop(session);
    let server = Server::bind(database, server_options(args)?, workers.handle().clone());
    let server = front.block_on(server).map_err(stop)?;
    if !args.quiet {
        let address = server.address().map_err(|e| Stop::System("cannot tell the address".into(), e))?;
        if let Some(address) = server.metrics_address() {
            note(format!("figures for Prometheus at http://{address}/metrics"));
        }
        if let Some(address) = server.http_address() {
            let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
            note(format!("what it does is shown at {scheme}://{address}/"));
        }
        note(format!(
            "onehop serves {} at {address}",
            path.map_or(":memory:".into(), |path| path.display().to_string())
        ));
    }
    front
        .block_on(async {
            let ended = end_of_process()?;
            server.run(ended).await;
            Ok::<(), io::Error>(())
        })
        .map_err(|e| Stop::System("cannot listen to signals".into(), e))?;
    workers.shutdown_timeout(client::END_PATIENCE);
    front.shutdown_background();
    Ok(())
}

fn server_options(args: &ServeArgs) -> Result<Options, Stop> {
    Ok(Options {
        listen: args.listen,
        users: args.users.as_ref().map(Users::at),
        tls: args.tls_cert.clone().zip(args.tls_key.clone()).map(|(certificates, key)| TlsFiles { certificates, key }),
        metrics: args.metrics,
        http: args.http,
        log: args.log.clone().map(|file| if file == Path::new("-") { LogTo::StandardError } else { LogTo::File(file) }),
        log_min_duration: args.log_min_duration.unwrap_or_default(),
        // What is empty in the environment is as if it were not there.
        otlp: args.otlp.clone().filter(|url| !url.is_empty()),
        max_connections: args.max_connections,
        max_queries: args.max_queries,
        max_queued: args.max_queued,
        grace: args.grace,
        ..Options::default()
    })
}

/// Done when the process is told to end.
fn end_of_process() -> io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn stop(e: onehop_server::Error) -> Stop {
    match e {
        onehop_server::Error::Listen { address, source } => Stop::System(format!("cannot listen at {address}"), source),
        onehop_server::Error::Log { path, source } => {
            Stop::System(format!("cannot open the log {}", path.display()), source)
        }
        refused => Stop::Usage(refused.to_string()),
    }
}
