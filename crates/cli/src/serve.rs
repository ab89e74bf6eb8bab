//! `onehop serve`: the engine's threads, and separate ones for connections.

use std::io;
use std::path::Path;

use onehop_engine::{Access, DatabaseOptions};
use onehop_server::{LogTo, Options, Server, TlsFiles, Users};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::ServeArgs;
use crate::client;
use crate::exit::Stop;
use crate::settings;
use crate::terminal::note;

/// The number of threads for connections, which also encode rows.
const FRONT_THREADS: usize = 4;

/// Serves until it is told to end.
pub fn run(args: &ServeArgs) -> Result<(), Stop> {
    let access = if args.readonly { Access::ReadOnly } else { Access::ReadWrite };
    settings::effective(&args.set)?;
    let options = DatabaseOptions { access, settings: args.set.clone(), ..DatabaseOptions::default() };
    let executors = client::executors(&options)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(FRONT_THREADS);
    let front = onehop_engine::front(threads)?;
    let path = client::directory(args.path.as_deref());
    let (database, session) = client::open(path, &options)?;
    drop(session);
    let server = Server::bind(database, server_options(args)?, executors.clone());
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
            let signals = signals()?;
            server.run_until(told(signals.clone(), 1), told(signals, 2)).await;
            Ok::<(), io::Error>(())
        })
        .map_err(|e| Stop::System("cannot listen to signals".into(), e))?;
    executors.shutdown(client::END_PATIENCE);
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
        log: args.log.as_deref().map(log_to),
        audit: args.audit.as_deref().map(log_to),
        log_min_duration: args.log_min_duration.unwrap_or_default(),
        // An empty environment variable counts as unset.
        otlp: args.otlp.clone().filter(|url| !url.is_empty()),
        max_connections: args.max_connections,
        reserved_connections: args.reserved_connections,
        max_logins: args.max_logins,
        max_queries: args.max_queries,
        max_queued: args.max_queued,
        grace: args.grace,
        ..Options::default()
    })
}

fn log_to(file: &Path) -> LogTo {
    if file == Path::new("-") { LogTo::StandardError } else { LogTo::File(file.into()) }
}

/// Returns a counter of the signals to end.
fn signals() -> io::Result<watch::Receiver<u32>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            count.send_modify(|signals| *signals += 1);
        }
    });
    Ok(counted)
}

/// Completes once the process has received `often` signals.
async fn told(mut signals: watch::Receiver<u32>, often: u32) {
    // The counter lives as long as the process.
    let _ = signals.wait_for(|signals| *signals >= often).await;
}

fn stop(e: onehop_server::Error) -> Stop {
    match e {
        onehop_server::Error::Listen { address, source } => Stop::System(format!("cannot listen at {address}"), source),
        onehop_server::Error::Log { name, path, source } => {
            Stop::System(format!("cannot open {name} {}", path.display()), source)
        }
        refused => Stop::Usage(refused.to_string()),
    }
}
