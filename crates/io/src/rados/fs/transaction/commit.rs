//! The commit of a transaction: steps 1 to 6 of the protocol in [`super`], and the fast way through the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::super::super::{Code, Error, Problem, Result, TransactionProblem, WriteOp};
use super::super::clock::millis;
use super::super::directory::{
    Outcome, Settled, State as DirectoryState, comparisons_first, filled, new_object, object_of as directory_object,
};
use super::super::path::Path;
use super::super::record::{Dentry, Mark, Record, STAGED, id_key, name_key};
use super::super::side_by_side::side_by_side;
use super::super::{FileSystem, Id, Retry};
use super::attempt::{Rest, StagedFile};
use super::finish::{Leftovers, Settling, Touched};
use super::object::{
    ATTEMPTS, DUE, Fate, Lease, MADE, REPLACED, STATE, State, TOUCHED, WAITS, WINNERS, Winner, object_of,
};
use super::plan::{Branch, Goal, Item, Made, Step, make, step_for_directory, step_for_file};
use super::{Transaction, error, or_gone};

const OPERATION: &str = "commit";
/// Names in one operation. Few in tests, so that they have more than one.
pub(super) const BATCH: usize = if cfg!(test) { 3 } else { 1000 };

/// A directory that is there, and what is to be put into it.
struct Job<'b> {
    branch: &'b Branch,
    directory: Id,
    path: String,
}

/// What is to be staged in one directory.
struct Change<'b> {
    job: Job<'b>,
    hint: Vec<u8>,
    items: Vec<Item<'b>>,
}

impl Transaction {
    /// Makes the files of all committed task attempts visible, at one moment.
    ///
    /// # Errors
    /// If a file may not be where it is to be, or others have held it up for too long, or the cluster has failed: then it is
    /// aborted, if that could be done; else its lease ends it. After [`TransactionProblem::OutcomeUnknown`] only
    /// [`Self::state`] tells, and [`Self::abort`] makes it certain. One that is committed may be committed again.
    pub fn commit(&self) -> Result<()> {
        if let Some(committer) = self.make_visible()? {
            // It has happened: what is left, others do as well.
            let _ = committer.finish();
        }
        Ok(())
    }

    /// Steps 1 to 6; `None`: it was committed before.
    pub(super) fn make_visible(&self) -> Result<Option<Committer<'_>>> {
        let fs = &self.fs;
        let look = self.look(OPERATION, Vec::new())?;
        match look.state {
            State::Pending => {}
            State::Committed { .. } => {
                let _ = fs.settle_transaction(self.id, Settling::Keep);
                return Ok(None);
            }
            state => return Err(self.ended(OPERATION, state)),
        }
        let committer = match Committer::begin(self) {
            Ok(Some(committer)) => committer,
            Ok(None) => return Err(self.not_pending(OPERATION)),
            Err(error) => return Err(self.give_up(error)),
        };
        if let Err(error) = committer.stage() {
            let error = self.give_up(error);
            // Who has ended the transaction may not have seen them.
            committer.unmake_all();
            return Err(error);
        }
        committer.flip()?;
        Ok(Some(committer))
    }

    fn give_up(&self, why: Error) -> Error {
        // If this fails as well, the lease ends it.
        let _ = self.abort();
        why
    }
}

/// Who commits a transaction. There is one at most.
pub(super) struct Committer<'t> {
    transaction: &'t Transaction,
    fs: &'t FileSystem,
    state: State,
    renew_at_ms: AtomicU64,
    /// Directories that were made, or may have been.
    made: Mutex<BTreeSet<Id>>,
    touched: Mutex<BTreeMap<Id, Touched>>,
    leftovers: Mutex<Leftovers>,
    /// Transactions that this one has said to wait for.
    waits: Mutex<BTreeSet<Id>>,
    /// The one that it gives way to.
    gives_way: Mutex<Option<Id>>,
    /// Something has got no answer, and may come late: from then on there is no going back but to abort it.
    is_doubtful: AtomicBool,
}

impl<'t> Committer<'t> {
    /// Step 1; `None`: it is not pending any more.
    fn begin(transaction: &'t Transaction) -> Result<Option<Self>> {
        let fs = &transaction.fs;
        let state = State::Committing { token: fs.new_id()? };
        let committer = Self {
            transaction,
            fs,
            state,
            renew_at_ms: AtomicU64::new(0),
            made: Mutex::default(),
            touched: Mutex::default(),
            leftovers: Mutex::new(Leftovers::default()),
            waits: Mutex::default(),
            gives_way: Mutex::default(),
            is_doubtful: AtomicBool::new(false),
        };
        let lease = committer.lease();
        Ok(fs.decide(transaction.id, State::Pending, state, None, Some(lease))?.then_some(committer))
    }

    /// A short one: others are held up by what is staged.
    fn lease(&self) -> Lease {
        let lease = self.fs.inner.options.move_lease;
        self.renew_at_ms.store(self.fs.due_ms(lease / 2), Relaxed);
        Lease { due_ms: self.fs.due_ms(lease), lease_ms: millis(lease) }
    }

    /// Renews the lease when half of it is over.
    fn go_on(&self) -> Result<()> {
        if self.fs.now_ms() < self.renew_at_ms.load(Relaxed) {
            return Ok(());
        }
        let lease = self.lease().encode();
        self.change(|op| op.set_attribute(DUE, lease))
    }

    /// A change of the transaction, as long as nobody has ended it.
    fn change(&self, add: impl FnOnce(WriteOp) -> WriteOp) -> Result<()> {
        let op = add(WriteOp::new(OPERATION).assert_exists().attribute_is(STATE, self.state.encode()));
        match self.fs.attempt(&object_of(self.transaction.id), op)? {
            Outcome::Done => Ok(()),
            Outcome::Conflict => Err(self.transaction.not_pending(OPERATION)),
            Outcome::Unknown(error) => Err(error),
        }
    }

    /// Steps 2 to 5; from the beginning again if it had to give way.
    fn stage(&self) -> Result<()> {
        let tree = self.gather()?;
        let root = Path::parse(OPERATION, "/")?;
        let mut retry = self.fs.retry(OPERATION, &root);
        loop {
            let Err(why) = self.stage_tree(&tree, &mut retry) else { return Ok(()) };
            let first = self.gives_way.lock().unwrap_or_else(PoisonError::into_inner).take();
            match first.filter(|_| !self.is_doubtful.load(Relaxed)) {
                Some(first) => self.give_way(first, &mut retry)?,
                None => return Err(why),
            }
        }
    }

    fn stage_tree(&self, tree: &Branch, retry: &mut Retry<'_>) -> Result<()> {
        let mut jobs = vec![Job { branch: tree, directory: Id::ROOT, path: String::new() }];
        loop {
            let changes = self.plan(jobs)?;
            self.record(&changes)?;
            self.make(changes.iter().flat_map(|change| &change.items))?;
            // Others may have made a directory that was to be made: then there is something to do in that one.
            jobs = self.at_once(changes, |change| self.stage_in(change))?.into_iter().flatten().collect();
            if jobs.is_empty() {
                return Ok(());
            }
            retry.again()?;
        }
    }

    fn at_once<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> Result<R> + Sync) -> Result<Vec<R>> {
        side_by_side(self.fs.inner.options.at_once, items, |item| {
            self.go_on()?;
            // Of several errors one is seen, so what matters is noted.
            work(item).inspect_err(|error| {
                if error.is(Code::TIMED_OUT) {
                    self.is_doubtful.store(true, Relaxed);
                }
            })
        })
    }

    /// Says that this transaction is held up by another one.
    ///
    /// # Errors
    /// If that one is held up by this one, and this one is to give way.
    fn wait_for(&self, other: Id) -> Result<()> {
        let gives_way = || self.gives_way.lock().unwrap_or_else(PoisonError::into_inner);
        let held_up =
            |by: Id| Err(Error::Path { operation: OPERATION, path: "/".into(), problem: Problem::InTransaction(by) });
        if let Some(first) = *gives_way() {
            return held_up(first);
        }
        if self.waits.lock().unwrap_or_else(PoisonError::into_inner).insert(other) {
            let mark = Mark { stamp: self.fs.new_id()? }.encode();
            self.change(|op| op.set_entry(id_key(WAITS, other), mark))?;
        }
        if !self.fs.has_to_give_way(self.transaction.id, other)? {
            return Ok(());
        }
        *gives_way() = Some(other);
        held_up(other)
    }

    /// Brings back all names that are staged, and waits until another transaction has ended.
    fn give_way(&self, first: Id, retry: &mut Retry<'_>) -> Result<()> {
        let touched = std::mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner));
        let busy = retry.error(Problem::Busy);
        self.at_once(touched.into_iter().collect(), |(directory, touched)| {
            match self.fs.settle_known_as(self.transaction.id, directory, &touched, Settling::Discard)? {
                Outcome::Done => Ok(()),
                Outcome::Unknown(error) => Err(error),
                // Nobody changes what is staged, unless this transaction or the directory has come to an end.
                Outcome::Conflict => {
                    self.change(|op| op)?;
                    Err(busy.clone())
                }
            }
        })?;
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        self.unmake(made.into_iter().collect())?;
        while let Fate::Open { due_ms } = self.fs.fate(first)? {
            if self.fs.now_ms() >= due_ms {
                break;
            }
            self.go_on()?;
            retry.wait(Some(first))?;
        }
        Ok(())
    }

    /// The files of the attempts that count.
    fn gather(&self) -> Result<Branch> {
        let (mut winners, mut attempts, mut replaced) = (Vec::new(), 0, Vec::new());
        self.fs.each_record(self.transaction.id, b"", |look, key, value| {
            if key.starts_with(WINNERS) {
                winners.push(look.decode::<Winner>(key, value)?.directory);
            } else if let Some(path) = key.strip_prefix(REPLACED) {
                replaced.push(String::from_utf8_lossy(path).into_owned());
            }
            attempts += usize::from(key.starts_with(ATTEMPTS));
            Ok(())
        })?;
        let found = self.at_once(winners.clone(), |directory| self.fs.staged_files(directory));
        // They are gone if somebody has ended the transaction; else that is damage.
        let found = found.or_else(|error| self.change(|op| op).and(Err(error)))?;
        let is_all = winners.len() == attempts && found.iter().all(|(_, rest)| *rest == Rest::Nothing);
        *self.leftovers.lock().unwrap_or_else(PoisonError::into_inner) =
            if is_all { Leftovers::Winners(winners) } else { Leftovers::Others };
        let files: Vec<StagedFile> = found.into_iter().flat_map(|(files, _)| files).collect();
        Branch::of(files, &replaced)
    }

    /// Step 2: what is to be staged in these directories and in those below that are there.
    fn plan<'b>(&self, mut jobs: Vec<Job<'b>>) -> Result<Vec<Change<'b>>> {
        let mut changes = Vec::new();
        while !jobs.is_empty() {
            let planned = self.at_once(jobs, |job| self.plan_one(job))?;
            let (more, below): (Vec<_>, Vec<_>) = planned.into_iter().unzip();
            changes.extend(more.into_iter().filter(|change| !change.items.is_empty()));
            jobs = below.into_iter().flatten().collect();
        }
        Ok(changes)
    }

    fn plan_one<'b>(&self, job: Job<'b>) -> Result<(Change<'b>, Vec<Job<'b>>)> {
        let (branch, id) = (job.branch, self.transaction.id);
        let (hint, seen) = self.look_at(&job, branch.keys())?;
        let (mut items, mut below) = (Vec::new(), Vec::new());
        let seen_of = |name: &str| seen.get(name).cloned();
        for (name, child) in &branch.directories {
            let (seen, path) = (seen_of(name), format!("{}/{name}", job.path));
            match step_for_directory(id, child, seen.as_ref().map(|(_, dentry)| dentry)) {
                Ok(Step::Stage) => {
                    let goal = Goal::Directory { branch: child, made: make(self.fs, child)? };
                    items.push(Item { name, seen, goal });
                }
                Ok(Step::Descend(directory)) => below.push(Job { branch: child, directory, path }),
                Ok(Step::Done) => {}
                Err(problem) => return Err(Error::Path { operation: OPERATION, path, problem }),
            }
        }
        for (name, file) in &branch.files {
            let seen = seen_of(name);
            if let Step::Stage = step_for_file(id, file, seen.as_ref().map(|(_, dentry)| dentry))? {
                items.push(Item { name, seen, goal: Goal::File(file) });
            }
        }
        Ok((Change { job, hint, items }, below))
    }

    /// A directory's hint and what is there under some names, of which nobody else is in the middle of something.
    #[allow(clippy::type_complexity)]
    fn look_at(&self, job: &Job<'_>, keys: Vec<Vec<u8>>) -> Result<(Vec<u8>, BTreeMap<String, (Vec<u8>, Dentry)>)> {
        let shown = if job.path.is_empty() { "/" } else { &job.path };
        let path = Path::parse(OPERATION, shown)?;
        let mut retry = self.fs.retry(OPERATION, &path);
        let (mut hint, mut seen) = (Vec::new(), BTreeMap::new());
        for keys in keys.chunks(BATCH) {
            hint = self.look_at_some(job.directory, keys, &mut seen, &mut retry)?;
        }
        if keys.is_empty() {
            hint = self.fs.look_live(job.directory, Vec::new(), &mut retry)?.hint;
        }
        Ok((hint, seen))
    }

    fn look_at_some(
        &self,
        directory: Id,
        keys: &[Vec<u8>],
        seen: &mut BTreeMap<String, (Vec<u8>, Dentry)>,
        retry: &mut Retry<'_>,
    ) -> Result<Vec<u8>> {
        'look: loop {
            let look = self.fs.look_live(directory, keys.to_vec(), retry)?;
            for (key, raw) in look.entries() {
                let name = String::from_utf8_lossy(&key[b"n/".len()..]).into_owned();
                let dentry: Dentry = look.decode(key, raw)?;
                let is_others = dentry.tag.is_some() && !super::plan::is_staged_by(self.transaction.id, Some(&dentry));
                if is_others {
                    if let Settled::Wait(holder) = self.fs.settle(directory, &name, raw, &dentry)? {
                        if let Some(holder) = holder {
                            self.go_on()?;
                            self.wait_for(holder)?;
                        }
                        retry.wait(holder)?;
                    }
                    continue 'look;
                }
                seen.insert(name, (raw.clone(), dentry));
            }
            return Ok(look.hint);
        }
    }

    /// Step 3: the transaction knows of what will be touched and made before it is.
    fn record(&self, changes: &[Change<'_>]) -> Result<()> {
        let made = changes.iter().flat_map(|change| &change.items).flat_map(made_of).map(|made| id_key(MADE, made.id));
        let keys: Vec<Vec<u8>> =
            changes.iter().map(|change| id_key(TOUCHED, change.job.directory)).chain(made).collect();
        for keys in keys.chunks(BATCH) {
            let mark = Mark { stamp: self.fs.new_id()? }.encode();
            self.change(|op| keys.iter().fold(op, |op, key| op.set_entry(key.clone(), mark.clone())))?;
        }
        Ok(())
    }

    /// Step 4.
    fn make<'i>(&self, items: impl Iterator<Item = &'i Item<'i>>) -> Result<()> {
        self.at_once(items.flat_map(made_of).collect(), |made| self.make_one(made)).map(drop)
    }

    /// A directory with all that is in it. The last operation makes it live, so none that comes late changes it after that.
    fn make_one(&self, made: &Made) -> Result<()> {
        let batches = made.entries.len().div_ceil(BATCH).max(1);
        let object = directory_object(made.id);
        self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(made.id);
        for batch in 0..batches {
            let is_last = batch + 1 == batches;
            let op = match batch {
                0 if is_last => new_object(&DirectoryState::Live, b"-"),
                0 => new_object(&DirectoryState::Filling, b"-"),
                _ => filled(is_last),
            };
            let entries = made.entries.iter().skip(batch * BATCH).take(BATCH);
            let op = entries.fold(op, |op, (key, value)| op.set_entry(key.clone(), value.clone()));
            self.fs.inner.meta.write(&object, op)?;
        }
        Ok(())
    }

    /// Step 5, in one directory. Returns what is to be done in others, which were not there when it was planned.
    fn stage_in<'b>(&self, mut change: Change<'b>) -> Result<Vec<Job<'b>>> {
        let (fs, directory) = (self.fs, change.job.directory);
        let shown = if change.job.path.is_empty() { "/".to_owned() } else { change.job.path.clone() };
        let path = Path::parse(OPERATION, &shown)?;
        let mut retry = fs.retry(OPERATION, &path);
        let mut jobs = Vec::new();
        let mut waiting = std::mem::take(&mut change.items);
        while !waiting.is_empty() {
            let mut batch: Vec<Item<'b>> = waiting.drain(..waiting.len().min(BATCH)).collect();
            while !batch.is_empty() && !self.stage_batch(&mut change.hint, directory, &batch)? {
                retry.again()?;
                (change.hint, batch) = self.look_again(&change.job, batch, &mut jobs)?;
            }
        }
        Ok(jobs)
    }

    /// Stages some names of one directory; false: something was not as it was seen.
    fn stage_batch(&self, hint: &mut Vec<u8>, directory: Id, batch: &[Item<'_>]) -> Result<bool> {
        let (fs, id) = (self.fs, self.transaction.id);
        let Some(mut op) = fs.in_listed(directory, hint, OPERATION)? else { return Ok(false) };
        // Another one each time: who has seen no staged name, and removes the mark, compares it.
        let mark = Mark { stamp: fs.new_id()? }.encode();
        op = op.set_entry(id_key(STAGED, id), mark.clone());
        let mut names = Vec::with_capacity(batch.len());
        for item in batch {
            let (key, dentry) = (name_key(item.name), item.staged(fs, id)?);
            let raw = dentry.encode();
            op = op.entry_is(key.clone(), item.seen.as_ref().map(|(raw, _)| raw.clone())).set_entry(key, raw.clone());
            names.push((item.name.to_owned(), raw, dentry));
        }
        match fs.attempt(&directory_object(directory), comparisons_first(op))? {
            Outcome::Done => {
                let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
                let touched = touched.entry(directory).or_default();
                touched.mark = mark;
                touched.names.extend(names);
                Ok(true)
            }
            Outcome::Conflict => Ok(false),
            // It may come later, in the place of nothing. So this transaction must not be committed.
            Outcome::Unknown(error) => Err(error),
        }
    }

    /// The same names as they are now. Directories that others have made meanwhile are used.
    fn look_again<'b>(
        &self,
        job: &Job<'b>,
        batch: Vec<Item<'b>>,
        jobs: &mut Vec<Job<'b>>,
    ) -> Result<(Vec<u8>, Vec<Item<'b>>)> {
        let id = self.transaction.id;
        let (hint, mut seen) = self.look_at(job, batch.iter().map(|item| name_key(item.name)).collect())?;
        let mut again = Vec::new();
        for item in batch {
            let now = seen.remove(item.name);
            let dentry = now.as_ref().map(|(_, dentry)| dentry);
            let path = || format!("{}/{}", job.path, item.name);
            let step = match &item.goal {
                Goal::File(file) => step_for_file(id, file, dentry)?,
                Goal::Directory { branch, .. } => step_for_directory(id, branch, dentry)
                    .map_err(|problem| Error::Path { operation: OPERATION, path: path(), problem })?,
            };
            match (step, item.goal) {
                (Step::Stage, goal) => again.push(Item { name: item.name, seen: now, goal }),
                (Step::Descend(directory), Goal::Directory { branch, made }) => {
                    jobs.push(Job { branch, directory, path: format!("{}/{}", job.path, item.name) });
                    self.unmake(made.into_iter().map(|made| made.id).collect())?;
                }
                (Step::Descend(_) | Step::Done, _) => {}
            }
        }
        Ok((hint, again))
    }

    /// Removes directories that are not needed after all. The transaction forgets them when they are gone.
    fn unmake(&self, made: Vec<Id>) -> Result<()> {
        self.at_once(made.clone(), |id| {
            or_gone(self.fs.inner.meta.write(&directory_object(id), WriteOp::new("remove").remove()))
        })?;
        for made in made.chunks(BATCH) {
            self.change(|op| made.iter().fold(op, |op, id| op.remove_entry(id_key(MADE, *id))))?;
        }
        Ok(())
    }

    /// Removes all directories that were made, if the transaction is not committed and never will be. What fails here, the
    /// collector does, unless it has been there before.
    fn unmake_all(&self) {
        if !matches!(self.fs.fate(self.transaction.id), Ok(Fate::Aborted | Fate::Gone)) {
            return;
        }
        for id in self.made.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = self.fs.inner.meta.write(&directory_object(*id), WriteOp::new("remove").remove());
        }
    }

    /// Step 6.
    fn flip(&self) -> Result<()> {
        let (fs, id) = (self.fs, self.transaction.id);
        let committed = State::Committed { at_ms: fs.now_ms() };
        match fs.decide(id, self.state, committed, None, None) {
            Ok(true) => Ok(()),
            // Nobody else brings it out of this state but who aborts it.
            Ok(false) => Err(error(OPERATION, id, TransactionProblem::Aborted)),
            // Refused: it has not happened.
            Err(why) if !why.is(super::Code::TIMED_OUT) => Err(self.transaction.give_up(why)),
            Err(_) => Err(error(OPERATION, id, TransactionProblem::OutcomeUnknown)),
        }
    }

    /// Steps 7 and 8.
    fn finish(self) -> Result<()> {
        let (fs, id) = (self.fs, self.transaction.id);
        let touched = self.touched.into_inner().unwrap_or_else(PoisonError::into_inner);
        side_by_side(fs.inner.options.at_once, touched.into_iter().collect(), |(directory, touched)| {
            fs.settle_known(id, directory, &touched)
        })?;
        match self.leftovers.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Leftovers::Winners(directories) => fs.forget_winners(id, directories),
            // Others may still be writing: what they have written has the grace time.
            Leftovers::Others => fs.end_losers(id),
        }
    }
}

fn made_of<'i>(item: &'i Item<'_>) -> &'i [Made] {
    match &item.goal {
        Goal::File(_) => &[],
        Goal::Directory { made, .. } => made,
    }
}
