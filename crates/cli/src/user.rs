//! `onehop user`: the users that may log in to a server.

use std::io::{self, BufRead, Read, Write};

use onehop_engine::Rights;
use onehop_server::{MOST_PASSWORD_BYTES, Users, UsersError};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::args::{RoleName, UserCommand};
use crate::exit::Stop;
use crate::terminal::note;

/// Runs a command.
pub fn run(command: &UserCommand) -> Result<(), Stop> {
    match command {
        UserCommand::Add { file, name, role } => {
            let password = password(name).map_err(|e| Stop::System("cannot read a password".into(), e))?;
            Users::at(file).add(name, &password, role.map(rights)).map_err(stop)
        }
        UserCommand::Remove { file, name } => Users::at(file).remove(name).map_err(stop),
        UserCommand::List { file } => {
            for (name, user) in Users::at(file).read().map_err(stop)? {
                writeln!(io::stdout(), "{name}\t{}", user.rights.name())?;
            }
            Ok(())
        }
    }
}

fn rights(role: RoleName) -> Rights {
    match role {
        RoleName::Read => Rights::Read,
        RoleName::Write => Rights::Write,
        RoleName::Admin => Rights::Admin,
    }
}

fn stop(e: UsersError) -> Stop {
    match e {
        UsersError::Name(_) | UsersError::Password | UsersError::Unknown(_) => Stop::Usage(e.to_string()),
        other => Stop::System("no change was made".into(), io::Error::other(other)),
    }
}

/// Reads a line of standard input. On a terminal it is not echoed.
fn password(name: &str) -> io::Result<String> {
    let stdin = io::stdin();
    let before = tcgetattr(&stdin).ok();
    if let Some(before) = &before {
        note(format!("password of {name}:"));
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    }
    let mut line = String::new();
    // A longer line is refused, and endless input is not read to its end.
    let read = stdin.lock().take(MOST_PASSWORD_BYTES as u64 + 3).read_line(&mut line);
    if let Some(before) = &before {
        tcsetattr(&stdin, OptionalActions::Flush, before)?;
    }
    read?;
    Ok(line.trim_end_matches(['\n', '\r']).to_string())
}
