//! The native methods of `io.onehop.rados.Native`, whose Java text says what each is for.
//!
//! Each function is the same thing three times: what Java gave, what is done with it, what Java gets. A failure becomes a
//! `NativeException` with a word and a sentence; a panic an `InternalError`; and the value that is returned then is one that
//! Java never looks at.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use jni::errors::ErrorPolicy;
use jni::objects::{JByteArray, JByteBuffer, JClass, JIntArray, JLongArray, JObjectArray, JString, JValue};
use jni::strings::JNIString;
use jni::sys::{jboolean, jint, jlong};
use jni::{Env, EnvUnowned, jni_sig, jni_str};
use onehop_io::rados::Location;
use onehop_io::rados::Problem;
use onehop_io::rados::fs::{Entry, Id, Kind, Replace, TaskAttempt, Transaction, TransactionOptions};

use crate::failure::{Failure, Result};
use crate::handles::Handles;
use crate::input::{Input, Policy};
use crate::mount::{Mount, MountOptions};
use crate::output::Output;
use crate::target::{ArrayTarget, DirectTarget, Target, direct_bytes};
use crate::wire;

static HANDLES: Handles = Handles::new();

/// What becomes of failures and panics.
struct Throw;

impl<T: Default> ErrorPolicy<T, Failure> for Throw {
    type Captures<'caller: 'method, 'method> = ();

    fn on_error<'caller: 'method, 'method>(
        env: &mut Env<'caller>,
        (): &mut (),
        failure: Failure,
    ) -> jni::errors::Result<T> {
        // What Java has thrown already says more.
        if !env.exception_check() {
            let word = JString::new(env, failure.word())?;
            let text = JString::new(env, failure.to_string())?;
            let class = env.find_class(jni_str!("io/onehop/rados/NativeException"))?;
            let signature = jni_sig!("(Ljava/lang/String;Ljava/lang/String;)V");
            let thrown = env.new_object(class, signature, &[JValue::Object(&word), JValue::Object(&text)])?;
            env.throw(env.cast_local::<jni::objects::JThrowable<'_>>(thrown)?)?;
        }
        Ok(T::default())
    }

    fn on_panic<'caller: 'method, 'method>(
        env: &mut Env<'caller>,
        (): &mut (),
        payload: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        let said = payload.downcast_ref::<&str>().copied();
        let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        if !env.exception_check() {
            let text = format!("the native library of rados:// has a bug, please report it: {said}");
            env.throw_new(jni_str!("java/lang/InternalError"), JNIString::new(text))?;
        }
        Ok(T::default())
    }
}

/// A path, or another text, in UTF-8.
fn text(env: &Env<'_>, bytes: &JByteArray<'_>) -> Result<String> {
    String::from_utf8(env.convert_byte_array(bytes)?).map_err(|_| Failure::Misuse("a text is not UTF-8".into()))
}

/// Some of these.
fn texts<'local>(env: &mut Env<'local>, array: &JObjectArray<'local, JByteArray<'local>>) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for at in 0..array.len(env)? {
        let bytes = array.get_element(env, at)?;
        texts.push(text(env, &bytes)?);
        // There may be more of them than the virtual machine keeps references for.
        env.delete_local_ref(bytes);
    }
    Ok(texts)
}

fn mount(handle: jlong) -> Result<Arc<Mount>> {
    Ok(HANDLES.get(handle)?)
}

fn input(handle: jlong) -> Result<Arc<Input>> {
    Ok(HANDLES.get(handle)?)
}

fn output(handle: jlong) -> Result<Arc<Output>> {
    Ok(HANDLES.get(handle)?)
}

fn position(at: jlong) -> Result<u64> {
    u64::try_from(at).map_err(|_| Failure::Misuse(format!("position {at}")))
}

fn length(len: usize) -> jint {
    jint::try_from(len).unwrap_or(jint::MAX)
}

fn size(len: jint) -> Result<usize> {
    usize::try_from(len).map_err(|_| Failure::Misuse(format!("{len} bytes")))
}

/// Defines a native method: its arguments after the class, and what it does with them and the environment.
macro_rules! native {
    ($(#[$doc:meta])* fn $name:ident($env:ident $(, $argument:ident: $kind:ty)*) -> $result:ty $body:block) => {
        $(#[$doc])*
        // SAFETY: nothing else has a name like this one.
        #[unsafe(no_mangle)]
        pub extern "system" fn $name<'local>(
            mut unowned: EnvUnowned<'local>,
            _class: JClass<'local>,
            $($argument: $kind),*
        ) -> $result {
            unowned.with_env(|$env: &mut Env<'local>| -> Result<$result> { $body }).resolve::<Throw>()
        }
    };
}

native! {
    /// The pool and the namespace that an authority names.
    fn Java_io_onehop_rados_Native_authority(env, authority: JString<'local>) -> JObjectArray<'local, JString<'local>> {
        let location = Location::parse(&format!("rados://{}", authority.try_to_string(env)?))?;
        let pool = JString::new(env, location.authority.pool)?;
        let namespace = JString::new(env, location.authority.namespace)?;
        let both = JObjectArray::<JString<'local>>::new(env, 2, JString::null())?;
        both.set_element(env, 0, pool)?;
        both.set_element(env, 1, namespace)?;
        Ok(both)
    }
}

native! {
    /// A handle of a file system; options are names and values by turns.
    fn Java_io_onehop_rados_Native_mount(
        env, authority: JString<'local>, options: JObjectArray<'local, JString<'local>>
    ) -> jlong {
        let location = Location::parse(&format!("rados://{}", authority.try_to_string(env)?))?;
        let mut texts = Vec::new();
        for at in 0..options.len(env)? {
            texts.push(options.get_element(env, at)?.try_to_string(env)?);
        }
        let pairs = texts.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str()));
        let options = MountOptions::parse(pairs)?;
        Ok(HANDLES.issue(Mount::open(&location.authority, &options)?))
    }
}

native! {
    fn Java_io_onehop_rados_Native_unmount(_env, handle: jlong) -> () {
        HANDLES.close::<Mount>(handle)?;
        Ok(())
    }
}

native! {
    /// What to write at once: it is passed on from where it is.
    fn Java_io_onehop_rados_Native_pieceBytes(_env, handle: jlong) -> jint {
        Ok(jint::try_from(mount(handle)?.fs.piece_bytes()).unwrap_or(jint::MAX))
    }
}

native! {
    /// What was moved: read from storage, written to it, operations of both kinds, copied by renames.
    fn Java_io_onehop_rados_Native_moved(env, handle: jlong) -> JLongArray<'local> {
        use onehop_io::Hop;
        let moved = mount(handle)?.ledger.snapshot();
        let counts = [
            moved.hop(Hop::StorageToHost), moved.hop(Hop::HostToStorage), moved.read_ops, moved.write_ops,
            moved.hop(Hop::RenameCopy),
        ];
        let counts = counts.map(|count| jlong::try_from(count).unwrap_or(jlong::MAX));
        let array = JLongArray::new(env, counts.len())?;
        array.set_region(env, 0, &counts)?;
        Ok(array)
    }
}

native! {
    fn Java_io_onehop_rados_Native_stat(env, handle: jlong, path: JByteArray<'local>) -> JByteArray<'local> {
        let entry = mount(handle)?.fs.stat(&text(env, &path)?)?;
        Ok(env.byte_array_from_slice(&wire::entry(&entry))?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_list(
        env, handle: jlong, path: JByteArray<'local>, after: JByteArray<'local>
    ) -> JByteArray<'local> {
        let after = if after.is_null() { None } else { Some(text(env, &after)?) };
        let page = mount(handle)?.fs.list_page(&text(env, &path)?, after.as_deref())?;
        Ok(env.byte_array_from_slice(&wire::page(&page))?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_makeDirectories(env, handle: jlong, path: JByteArray<'local>) -> () {
        Ok(mount(handle)?.fs.create_directory_all(&text(env, &path)?)?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_rename(
        env, handle: jlong, from: JByteArray<'local>, to: JByteArray<'local>, replace: jboolean
    ) -> () {
        let replace = if replace { Replace::File } else { Replace::Never };
        Ok(mount(handle)?.fs.rename(&text(env, &from)?, &text(env, &to)?, replace)?)
    }
}

native! {
    /// Makes one file of several in one directory; the first keeps its name.
    fn Java_io_onehop_rados_Native_concat(
        env, handle: jlong, directory: JByteArray<'local>, names: JObjectArray<'local, JByteArray<'local>>
    ) -> () {
        let texts = texts(env, &names)?;
        let names: Vec<&str> = texts.iter().map(String::as_str).collect();
        mount(handle)?.fs.concat(&text(env, &directory)?, &names)?;
        Ok(())
    }
}

native! {
    fn Java_io_onehop_rados_Native_setModified(env, handle: jlong, path: JByteArray<'local>, millis: jlong) -> () {
        Ok(mount(handle)?.fs.set_modified(&text(env, &path)?, position(millis)?)?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_removeFile(env, handle: jlong, path: JByteArray<'local>) -> () {
        Ok(mount(handle)?.fs.remove_file(&text(env, &path)?)?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_removeEmptyDirectory(env, handle: jlong, path: JByteArray<'local>) -> () {
        Ok(mount(handle)?.fs.remove_directory(&text(env, &path)?)?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_removeAll(env, handle: jlong, path: JByteArray<'local>) -> () {
        Ok(mount(handle)?.fs.remove_all(&text(env, &path)?)?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_open(
        env, handle: jlong, path: JByteArray<'local>, policy: JString<'local>
    ) -> jlong {
        let policy = policy.try_to_string(env)?;
        let policy = Policy::parse(&policy).ok_or_else(|| Failure::Misuse(format!("there is no policy {policy}")))?;
        let mount = mount(handle)?;
        let file = mount.fs.open_file(&text(env, &path)?)?;
        Ok(HANDLES.issue(Input::new(file, policy, Arc::clone(&mount.ledger))))
    }
}

native! {
    /// The entry of a file that is open, as it was when it was opened.
    fn Java_io_onehop_rados_Native_opened(env, handle: jlong) -> JByteArray<'local> {
        let input = input(handle)?;
        let file = &input.file;
        let entry = Entry {
            name: String::new(), kind: Kind::File, len: file.size(), mtime_ms: file.mtime_ms(), id: file.id(),
        };
        Ok(env.byte_array_from_slice(&wire::entry(&entry))?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_readArray(
        env, handle: jlong, at: jlong, least: jint, array: JByteArray<'local>, offset: jint, len: jint
    ) -> jint {
        let mut target = ArrayTarget::new(env, &array, offset, len)?;
        Ok(length(input(handle)?.read(position(at)?, size(least)?, size(len)?, &mut target)?))
    }
}

native! {
    fn Java_io_onehop_rados_Native_readDirect(
        env, handle: jlong, at: jlong, least: jint, buffer: JByteBuffer<'local>, offset: jint, len: jint
    ) -> jint {
        let mut target = DirectTarget::new(env, &buffer, offset, len)?;
        Ok(length(input(handle)?.read(position(at)?, size(least)?, size(len)?, &mut target)?))
    }
}

native! {
    fn Java_io_onehop_rados_Native_readArrayAt(
        env, handle: jlong, at: jlong, array: JByteArray<'local>, offset: jint, len: jint
    ) -> jint {
        let mut target = ArrayTarget::new(env, &array, offset, len)?;
        Ok(length(input(handle)?.read_at(position(at)?, size(len)?, &mut target)?))
    }
}

native! {
    fn Java_io_onehop_rados_Native_readDirectAt(
        env, handle: jlong, at: jlong, buffer: JByteBuffer<'local>, offset: jint, len: jint
    ) -> jint {
        let mut target = DirectTarget::new(env, &buffer, offset, len)?;
        Ok(length(input(handle)?.read_at(position(at)?, size(len)?, &mut target)?))
    }
}

native! {
    /// Reads ranges side by side, each into the beginning of a direct buffer, or, where there is none, into an array from an
    /// offset on.
    fn Java_io_onehop_rados_Native_readRanges(
        env, handle: jlong, positions: JLongArray<'local>, lengths: JIntArray<'local>,
        buffers: JObjectArray<'local, JByteBuffer<'local>>, arrays: JObjectArray<'local, JByteArray<'local>>,
        offsets: JIntArray<'local>
    ) -> () {
        let count = positions.len(env)?;
        let (mut at, mut len, mut offset) = (vec![0; count], vec![0; count], vec![0; count]);
        positions.get_region(env, 0, &mut at)?;
        lengths.get_region(env, 0, &mut len)?;
        offsets.get_region(env, 0, &mut offset)?;
        let mut places = Vec::with_capacity(count);
        for number in 0..count {
            places.push((buffers.get_element(env, number)?, arrays.get_element(env, number)?));
        }
        let (mut ranges, mut targets) = (Vec::with_capacity(count), Vec::<Box<dyn Target>>::with_capacity(count));
        for (number, (buffer, array)) in places.iter().enumerate() {
            let from = position(at[number])?;
            ranges.push(from..from.saturating_add(size(len[number])? as u64));
            targets.push(if buffer.is_null() {
                Box::new(ArrayTarget::new(env, array, offset[number], len[number])?)
            } else {
                Box::new(DirectTarget::new(env, buffer, 0, len[number])?)
            });
        }
        input(handle)?.read_ranges(&ranges, &mut targets)
    }
}

native! {
    fn Java_io_onehop_rados_Native_unbuffer(_env, handle: jlong) -> () {
        input(handle)?.unbuffer();
        Ok(())
    }
}

native! {
    fn Java_io_onehop_rados_Native_closeInput(_env, handle: jlong) -> () {
        HANDLES.close::<Input>(handle)?;
        Ok(())
    }
}

native! {
    fn Java_io_onehop_rados_Native_create(
        env, handle: jlong, path: JByteArray<'local>, replace: jboolean, parents: jboolean
    ) -> jlong {
        let (mount, path) = (mount(handle)?, text(env, &path)?);
        let replace = if replace { Replace::File } else { Replace::Never };
        let create = || mount.fs.create_file(&path, replace, Arc::clone(&mount.ledger));
        let writer = match create() {
            Err(error) if parents && error.problem() == Some(Problem::NotFound) => {
                let parent = path.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent);
                mount.fs.create_directory_all(parent)?;
                create()?
            }
            created => created?,
        };
        Ok(HANDLES.issue(Output::new(path, writer)))
    }
}

native! {
    fn Java_io_onehop_rados_Native_write(
        env, handle: jlong, buffer: JByteBuffer<'local>, offset: jint, len: jint
    ) -> () {
        output(handle)?.append(direct_bytes(env, &buffer, offset, len)?)
    }
}

native! {
    /// Makes the file visible; the handle stays open until it is released.
    fn Java_io_onehop_rados_Native_commit(env, handle: jlong) -> JByteArray<'local> {
        Ok(match output(handle)?.close()? {
            Some(entry) => env.byte_array_from_slice(&wire::entry(&entry))?,
            None => JByteArray::null(),
        })
    }
}

native! {
    fn Java_io_onehop_rados_Native_abort(_env, handle: jlong) -> jboolean {
        Ok(output(handle)?.abort())
    }
}

native! {
    /// Takes a handle of an output stream away; one that was neither closed nor given up is given up.
    fn Java_io_onehop_rados_Native_closeOutput(_env, handle: jlong) -> () {
        HANDLES.close::<Output>(handle)?.abort();
        Ok(())
    }
}

/// A transaction by the digits of its identity: whoever has these, in any process, has it.
fn transaction(env: &Env<'_>, handle: jlong, id: &JString<'_>) -> Result<Transaction> {
    let digits = id.try_to_string(env)?;
    let id = Id::parse(&digits).ok_or_else(|| Failure::Misuse(format!("{digits} is no identity")))?;
    Ok(mount(handle)?.fs.transaction(id))
}

native! {
    /// Begins a transaction, and says its identity.
    fn Java_io_onehop_rados_Native_begin(env, handle: jlong, lease_millis: jlong) -> JString<'local> {
        let options = TransactionOptions { lease: Duration::from_millis(position(lease_millis)?) };
        let transaction = mount(handle)?.fs.begin(options)?;
        Ok(JString::new(env, transaction.id().to_string())?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_transactionState(env, handle: jlong, id: JString<'local>) -> JString<'local> {
        let state = transaction(env, handle, &id)?.state()?;
        Ok(JString::new(env, state.to_string())?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_renew(env, handle: jlong, id: JString<'local>) -> () {
        Ok(transaction(env, handle, &id)?.renew()?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_replaceDirectories(
        env, handle: jlong, id: JString<'local>, paths: JObjectArray<'local, JByteArray<'local>>
    ) -> () {
        let texts = texts(env, &paths)?;
        let paths: Vec<&str> = texts.iter().map(String::as_str).collect();
        Ok(transaction(env, handle, &id)?.replace_directories(&paths)?)
    }
}

native! {
    /// What the attempts that were committed have written.
    fn Java_io_onehop_rados_Native_staged(env, handle: jlong, id: JString<'local>) -> JByteArray<'local> {
        let staged = transaction(env, handle, &id)?.staged()?;
        Ok(env.byte_array_from_slice(&wire::staged(&staged))?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_commitTransaction(env, handle: jlong, id: JString<'local>) -> () {
        Ok(transaction(env, handle, &id)?.commit()?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_abortTransaction(env, handle: jlong, id: JString<'local>) -> () {
        Ok(transaction(env, handle, &id)?.abort()?)
    }
}

native! {
    /// A handle of an attempt at a task, which begins beside what the caller does next.
    fn Java_io_onehop_rados_Native_attempt(
        env, handle: jlong, id: JString<'local>, task: JString<'local>, attempt: JString<'local>
    ) -> jlong {
        let (task, attempt) = (task.try_to_string(env)?, attempt.try_to_string(env)?);
        Ok(HANDLES.issue(transaction(env, handle, &id)?.start_attempt(&task, &attempt)?))
    }
}

native! {
    /// A handle of an output stream, of a file that is visible when the attempt and the transaction are committed.
    fn Java_io_onehop_rados_Native_createStaged(
        env, handle: jlong, attempt: jlong, path: JByteArray<'local>, replace: jboolean
    ) -> jlong {
        let (mount, path) = (mount(handle)?, text(env, &path)?);
        let replace = if replace { Replace::File } else { Replace::Never };
        let writer = HANDLES.get::<TaskAttempt>(attempt)?.create(&path, replace, Arc::clone(&mount.ledger))?;
        Ok(HANDLES.issue(Output::new(path, writer)))
    }
}

native! {
    fn Java_io_onehop_rados_Native_commitAttempt(_env, attempt: jlong) -> () {
        Ok(HANDLES.get::<TaskAttempt>(attempt)?.commit()?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_abortAttempt(_env, attempt: jlong) -> () {
        Ok(HANDLES.get::<TaskAttempt>(attempt)?.abort()?)
    }
}

native! {
    fn Java_io_onehop_rados_Native_closeAttempt(_env, attempt: jlong) -> () {
        HANDLES.close::<TaskAttempt>(attempt)?;
        Ok(())
    }
}

native! {
    /// For the test that panics stop here.
    fn Java_io_onehop_rados_Native_panic(env, message: JString<'local>) -> () {
        let message = message.try_to_string(env)?;
        std::panic::resume_unwind(Box::new(message))
    }
}
