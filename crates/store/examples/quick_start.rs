//! Named trees in one file: write, read a snapshot, iterate ranges, undo a part, copy.
//!
//! `cargo run --example quick_start -- /tmp/fruit.store`

use onehop_store::{Options, Result, Store};

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "fruit.store".into());
    let store = Store::open(&path, &Options::default())?;

    let mut transaction = store.write()?;
    {
        let mut colours = transaction.tree("colours")?;
        for (fruit, colour) in [("apple", "red"), ("banana", "yellow"), ("cherry", "red"), ("lime", "green")] {
            colours.insert(fruit, colour)?;
        }
    }
    // A part of the transaction that is undone.
    let savepoint = transaction.savepoint()?;
    transaction.tree("colours")?.clear()?;
    transaction.rollback_to(savepoint)?;
    transaction.commit()?;

    // A snapshot does not change while other transactions write.
    let snapshot = store.read()?;
    let writer = store.write()?;
    writer.tree("colours")?.remove("banana")?;
    writer.commit()?;

    let colours = snapshot.tree("colours")?;
    for entry in colours.range("b".."l") {
        let entry = entry?;
        println!("{} is {}", String::from_utf8_lossy(entry.key()), String::from_utf8_lossy(entry.value()));
    }
    if let Some(last) = colours.last()? {
        println!("the last one is {}", String::from_utf8_lossy(last.key()));
    }
    println!("bananas now: {}", store.read()?.tree("colours")?.contains("banana")?);
    println!("{}", store.check()?);
    Ok(())
}
