//! Statements with parameters, `$1`, `$2` ..., `?` or `$name`: parsed once for their syntax, run with other values each time.
//!
//! What is kept are the statement's tokens. A value takes the place of its parameter as the literal that it is: one token, or a
//! few in brackets. So it means what this literal would mean there, and may stand wherever a literal may; and a text is one
//! text, whatever is in it. Nothing is put together as text.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

use crate::catalog::row::EncodedRows;
use crate::parameter::{Temporal, Value};
use crate::postgres::column_names::ColumnNames;
use crate::snapshot::{Snapshot, Table};
use crate::template::Template;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Result, Rule, planner};

/// As many as PostgreSQL's protocol has numbers for.
const MOST_PARAMETERS: usize = 65_535;

/// Rows that are put into a table in no more time than their commit takes.
const SHORT_ROWS: usize = 64;

/// What kind of statement one is, as far as it matters to whoever carries its outcome to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatementKind {
    /// Rows come of it.
    Query,
    /// Rows that say how a query is run.
    Explain,
    /// `SHOW name`: a setting's value. `ALL` has no name.
    Show(Option<String>),
    /// Rows are changed, and what they have become, or were, comes back. The word is the tag: `INSERT`, `UPDATE` or `DELETE`.
    Returning(&'static str),
    /// It begins a transaction; `IMMEDIATE`, in the writer's place.
    Begin {
        /// Whether it is to be there at once.
        is_immediate: bool,
        /// Whether it may change anything, if it says so.
        is_read_only: Option<bool>,
    },
    /// It ends one, or goes back to a savepoint: carried out in one that has failed as well.
    End,
    /// It changes a setting of the session.
    Set,
    /// Anything else: it is done, and no rows come of it.
    Other,
}

impl Temporal {
    /// As SQL has it.
    fn tokens(self) -> Vec<Token> {
        let word = match self {
            Self::Date => "DATE",
            Self::Time => "TIME",
            Self::Timestamp => "TIMESTAMP",
            Self::TimestampTz => "TIMESTAMPTZ",
            Self::Interval => "INTERVAL",
        };
        vec![Token::make_keyword(word)]
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_string())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Value {
    /// As a literal.
    fn tokens(&self) -> Result<Vec<Token>> {
        Ok(match self {
            Self::Null => vec![Token::make_keyword("NULL")],
            Self::Boolean(true) => vec![Token::make_keyword("TRUE")],
            Self::Boolean(false) => vec![Token::make_keyword("FALSE")],
            Self::Integer(number) => signed(*number < 0, number.unsigned_abs().to_string()),
            Self::Decimal(text) => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
                    && digits.bytes().filter(|byte| *byte == b'.').count() <= 1
                    && digits.bytes().any(|byte| byte.is_ascii_digit());
                if !is_number {
                    return Err(Error::new(ErrorKind::Invalid, format!("'{text}' is no decimal number"))
                        .with_hint("such a value has digits and up to one point: -12.50"));
                }
                match digits.contains('.') {
                    true => signed(digits.len() < text.len(), digits.to_string()),
                    // Digits alone would be an integer, and divided as one.
                    false => whole_decimal(text, digits)?,
                }
            }
            // Digits alone would be a decimal.
            Self::Double(number) => {
                let text = match *number {
                    number if number.is_nan() => "NaN".to_string(),
                    f64::INFINITY => "Infinity".to_string(),
                    f64::NEG_INFINITY => "-Infinity".to_string(),
                    number => format!("{number:e}"),
                };
                cast(vec![Token::SingleQuotedString(text)], &[Token::make_keyword("DOUBLE")])
            }
            Self::Text(text) => vec![Token::SingleQuotedString(text.clone())],
            Self::Binary(bytes) => {
                let digits = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                vec![Token::HexStringLiteral(digits)]
            }
            Self::Temporal(what, text) => cast(vec![Token::SingleQuotedString(text.clone())], &what.tokens()),
            Self::List(values) => {
                let mut tokens = vec![Token::make_keyword("ARRAY"), Token::LBracket];
                for (at, value) in values.iter().enumerate() {
                    tokens.extend((at > 0).then_some(Token::Comma));
                    tokens.extend(value.tokens()?);
                }
                tokens.push(Token::RBracket);
                tokens
            }
            Self::Struct(fields) => {
                let mut tokens = vec![Token::make_word("named_struct", None), Token::LParen];
                for (at, (name, value)) in fields.iter().enumerate() {
                    tokens.extend((at > 0).then_some(Token::Comma));
                    tokens.extend([Token::SingleQuotedString(name.clone()), Token::Comma]);
                    tokens.extend(value.tokens()?);
                }
                tokens.push(Token::RParen);
                tokens
            }
        })
    }
}

/// A decimal without digits behind the point.
fn whole_decimal(text: &str, digits: &str) -> Result<Vec<Token>> {
    let precision = digits.trim_start_matches('0').len().max(1);
    let data_type = DataType::Decimal128(u8::try_from(precision).unwrap_or(u8::MAX), 0);
    Ok(cast(vec![Token::SingleQuotedString(text.to_string())], &type_tokens(&data_type)?))
}

fn signed(is_negative: bool, digits: String) -> Vec<Token> {
    let number = Token::Number(digits, false);
    match is_negative {
        true => vec![Token::LParen, Token::Minus, number, Token::RParen],
        false => vec![number],
    }
}

fn cast(value: Vec<Token>, to: &[Token]) -> Vec<Token> {
    let mut tokens = vec![Token::make_keyword("CAST"), Token::LParen];
    tokens.extend(value);
    tokens.extend([space(), Token::make_keyword("AS"), space()]);
    tokens.extend_from_slice(to);
    tokens.push(Token::RParen);
    tokens
}

fn space() -> Token {
    Token::Whitespace(Whitespace::Space)
}

/// A statement whose parameters are given values each time that it runs ([`Session::execute`](crate::Session::execute)).
#[derive(Clone, Debug)]
pub struct Prepared {
    text: String,
    /// None if it was not parsed, but recognized.
    tokens: Option<Vec<TokenWithSpan>>,
    /// Which token is a parameter, and which it is, from 0.
    places: Vec<(usize, usize)>,
    parameters: usize,
    /// Names of the parameters, if they have any, in the order in which they are first mentioned.
    names: Vec<String>,
    /// Types that values are cast to, of the first so many parameters.
    types: Vec<Vec<Token>>,
    /// If it puts values into a table, as they are.
    template: Option<Arc<Template>>,
    /// What the template takes if the statement was recognized.
    literals: Vec<Value>,
    kind: StatementKind,
    /// What PostgreSQL's clients know its columns as.
    columns: ColumnNames,
}

impl Prepared {
    /// Of a statement's text.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] for what cannot be parsed; [`ErrorKind::Invalid`] if several kinds of parameters are in it.
    pub(crate) fn new(text: &str) -> Result<Self> {
        Self::of_tokens(text.to_string(), planner::tokens(text)?, Vec::new())
    }

    /// Of the tokens of a text, with types that values are cast to.
    pub(crate) fn of_tokens(text: String, tokens: Vec<TokenWithSpan>, types: Vec<Vec<Token>>) -> Result<Self> {
        let tokens = in_lists(tokens)?;
        let (mut places, mut marks, mut is_numbered, mut names) = (Vec::new(), 0, false, Vec::new());
        for (at, token) in tokens.iter().enumerate() {
            match parameter(&token.token)? {
                None => continue,
                Some(Parameter::Next) => {
                    places.push((at, marks));
                    marks += 1;
                }
                Some(Parameter::Number(number)) => {
                    is_numbered = true;
                    places.push((at, number - 1));
                }
                Some(Parameter::Name(name)) => {
                    let known = names.iter().position(|known| known == name);
                    places.push((at, known.unwrap_or(names.len())));
                    if known.is_none() {
                        names.push(name.to_string());
                    }
                }
            }
        }
        if [is_numbered, marks > 0, !names.is_empty()].into_iter().filter(|is_used| *is_used).count() > 1 {
            return Err(Error::new(ErrorKind::Invalid, "a statement has parameters by number, by ? or by name")
                .with_hint("write all of them as $1, $2 ..."));
        }
        let parameters = places.iter().map(|(_, parameter)| parameter + 1).max().unwrap_or(0).max(types.len());
        if parameters > MOST_PARAMETERS {
            let message = format!("a statement can have {MOST_PARAMETERS} parameters, and this one has {parameters}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let (tokens, template, literals) = (Some(tokens), None, Vec::new());
        let (kind, columns) = (StatementKind::Other, ColumnNames::default());
        Ok(Self { text, tokens, places, parameters, names, types, template, literals, kind, columns })
    }

    /// Of a text without parameters that is a template with literals.
    pub(crate) fn of_template(text: &str, template: Arc<Template>, literals: Vec<Value>, kind: StatementKind) -> Self {
        Self {
            text: text.to_string(),
            tokens: None,
            places: Vec::new(),
            parameters: 0,
            names: Vec::new(),
            types: Vec::new(),
            template: Some(template),
            literals,
            kind,
            columns: ColumnNames::default(),
        }
    }

    /// The statement, with its parameters.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many values it takes.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// Names of the parameters, in the order of the values; none if they have numbers or are `?`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What kind of statement it is.
    pub fn kind(&self) -> &StatementKind {
        &self.kind
    }

    pub(crate) fn with_kind(self, kind: StatementKind) -> Self {
        Self { kind, ..self }
    }

    /// The statement with NULLs in place of its parameters, of these types.
    pub(crate) fn with_nulls(&self, types: &[Option<DataType>]) -> Result<Vec<TokenWithSpan>> {
        let null = || vec![Token::make_keyword("NULL")];
        let typed = |data_type: &Option<DataType>| match data_type {
            Some(data_type) => Ok(cast(null(), &type_tokens(data_type)?)),
            None => Ok(cast(null(), &[Token::make_keyword("VARCHAR")])),
        };
        self.with(&types.iter().map(typed).collect::<Result<Vec<_>>>()?)
    }

    /// The statement with values in place of its parameters.
    ///
    /// # Errors
    /// There are more values than parameters, or fewer; one is no literal.
    pub(crate) fn bind(&self, values: &[Value]) -> Result<Vec<TokenWithSpan>> {
        if values.len() != self.parameters {
            let (takes, given) = (self.parameters, values.len());
            let message =
                format!("the statement takes {takes} value{}, and {given} came", if takes == 1 { "" } else { "s" });
            let error = Error::new(ErrorKind::Invalid, message).breaking(Rule::Count);
            return Err(error.with_hint("each of its parameters needs one"));
        }
        self.with(&values.iter().map(Value::tokens).collect::<Result<Vec<_>>>()?)
    }

    /// The same, parsed: what its values do is known before there are any.
    pub(crate) fn with_template(self, template: Option<Template>) -> Self {
        Self { template: template.map(Arc::new), ..self }
    }

    /// The same, with what PostgreSQL's clients know its columns as.
    pub(crate) fn with_columns(self, columns: ColumnNames) -> Self {
        Self { columns, ..self }
    }

    /// The columns of its rows by the names that PostgreSQL has for them: `count` for `count(*)`. Some may be alike.
    pub fn named(&self, columns: &SchemaRef) -> SchemaRef {
        self.columns.put(columns)
    }

    /// Whether it begins as something that takes no longer than a commit does: an `INSERT` of values, a `SET`, or the begin or
    /// end of a transaction. If it comes to more, it knows of that itself ([`Task::here`](crate::Task::here)).
    pub fn is_short(&self) -> bool {
        let has_few_rows = self.template.as_ref().is_some_and(|template| template.len() <= SHORT_ROWS);
        has_few_rows || matches!(self.kind, StatementKind::Begin { .. } | StatementKind::End | StatementKind::Set)
    }

    /// What takes its values, if it puts them into a table and does nothing else.
    pub(crate) fn template(&self) -> Option<&Arc<Template>> {
        self.template.as_ref()
    }

    /// What its template takes if it was recognized.
    #[cfg(test)]
    pub(crate) fn literals(&self) -> &[Value] {
        &self.literals
    }

    /// The rows that it puts into a table, if it does nothing else and they need no plan.
    pub(crate) fn rows(&self, values: &[Value], snapshot: &Snapshot) -> Option<(Arc<Table>, EncodedRows)> {
        let values = if self.tokens.is_none() && values.is_empty() { &self.literals } else { values };
        self.template
            .as_ref()
            .filter(|_| values.len() == self.parameters.max(self.literals.len()))?
            .rows(values, snapshot)
    }

    /// The statement as it is parsed to see whether it can be.
    pub(crate) fn unbound(&self) -> Result<Vec<TokenWithSpan>> {
        self.with(
            &(1..=self.parameters).map(|number| vec![Token::Placeholder(format!("${number}"))]).collect::<Vec<_>>(),
        )
    }

    fn with(&self, values: &[Vec<Token>]) -> Result<Vec<TokenWithSpan>> {
        let Some(tokens) = &self.tokens else { return planner::tokens(&self.text) };
        let mut bound = Vec::with_capacity(tokens.len() + 4 * self.places.len());
        let mut from = 0;
        for (at, parameter) in &self.places {
            bound.extend_from_slice(&tokens[from..*at]);
            let value = values[*parameter].clone();
            let value = match self.types.get(*parameter) {
                Some(to) => cast(value, to),
                None => value,
            };
            // Errors are about where the parameter stands.
            let span = tokens[*at].span;
            bound.extend(value.into_iter().map(|token| TokenWithSpan::new(token, span)));
            from = at + 1;
        }
        bound.extend_from_slice(&tokens[from..]);
        Ok(bound)
    }
}

/// `x IN $1` and `x NOT IN $1`, whose parameter is the whole list, as `x = ANY($1)` and `x <> ALL($1)`. In `position(x IN $1)`
/// IN is no comparison.
fn in_lists(tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    // Of each bracket that is open, whether it is that of `position`.
    let mut open = Vec::new();
    let mut put: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for token in tokens {
        match &token.token {
            Token::LParen => {
                let before =
                    put.iter().rev().map(|token| &token.token).find(|token| !matches!(token, Token::Whitespace(_)));
                open.push(matches!(before, Some(Token::Word(word)) if word.keyword == Keyword::POSITION));
            }
            Token::RParen => _ = open.pop(),
            other if open.last() != Some(&true) && parameter(other)?.is_some() => {
                let span = token.span;
                let Some(compared) = take_in(&mut put) else {
                    put.push(token);
                    continue;
                };
                put.extend(compared.into_iter().map(|token| TokenWithSpan::new(token, span)));
                put.push(token);
                put.push(TokenWithSpan::new(Token::RParen, span));
                continue;
            }
            _ => {}
        }
        put.push(token);
    }
    Ok(put)
}

/// Takes `IN` or `NOT IN` away at the end of tokens; what stands in place of it, up to the bracket of the list.
fn take_in(tokens: &mut Vec<TokenWithSpan>) -> Option<Vec<Token>> {
    let last_word = |tokens: &[TokenWithSpan], keyword| {
        let at = tokens.iter().rposition(|token| !matches!(token.token, Token::Whitespace(_)))?;
        matches!(&tokens[at].token, Token::Word(word) if word.keyword == keyword && word.quote_style.is_none())
            .then_some(at)
    };
    let at = last_word(tokens, Keyword::IN)?;
    tokens.truncate(at);
    let (compare, quantifier) = match last_word(tokens, Keyword::NOT) {
        None => (Token::Eq, "ANY"),
        Some(at) => {
            tokens.truncate(at);
            (Token::Neq, "ALL")
        }
    };
    Some(vec![compare, space(), Token::make_keyword(quantifier), Token::LParen])
}

enum Parameter<'a> {
    /// The one after those that came so far.
    Next,
    /// From 1.
    Number(usize),
    /// The one of that name.
    Name(&'a str),
}

/// What a token stands for.
fn parameter(token: &Token) -> Result<Option<Parameter<'_>>> {
    let name = match token {
        Token::Question => return Ok(Some(Parameter::Next)),
        Token::Placeholder(name) if name == "?" => return Ok(Some(Parameter::Next)),
        Token::Placeholder(name) => name,
        _ => return Ok(None),
    };
    if let Some(name) = name.strip_prefix('$').filter(|name| name.starts_with(|c: char| c.is_alphabetic() || c == '_'))
    {
        return Ok(Some(Parameter::Name(name)));
    }
    match name[1..].parse() {
        Ok(number) if (1..=MOST_PARAMETERS).contains(&number) => Ok(Some(Parameter::Number(number))),
        _ => Err(Error::new(ErrorKind::Invalid, format!("{name} is no parameter"))
            .with_hint(format!("parameters are $1 to ${MOST_PARAMETERS}, ? or $name"))),
    }
}

/// Says so if a statement has parameters that nobody gives values for.
pub(crate) fn refuse_parameters(tokens: &[TokenWithSpan]) -> Result<()> {
    for token in tokens {
        if parameter(&token.token)?.is_some() {
            let message = format!("nothing is given for the parameter {}", token.token);
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_hint("PREPARE name AS ... makes a statement with parameters, and EXECUTE name(...) runs it"));
        }
    }
    Ok(())
}

/// `PREPARE name [(type, ...)] AS statement`: the name, and the statement; `None` for any other.
pub(crate) fn of_prepare(tokens: &[TokenWithSpan]) -> Result<Option<(String, Prepared)>> {
    let mut rest = tokens;
    if !matches!(next(&mut rest), Some(Token::Word(word)) if word.keyword == Keyword::PREPARE) {
        return Ok(None);
    }
    let wrong = |what: &str| {
        let error = Error::new(ErrorKind::Syntax, format!("PREPARE without {what}"));
        error.with_hint("PREPARE name AS statement, or PREPARE name (type, ...) AS statement")
    };
    let name = match next(&mut rest) {
        Some(Token::Word(word)) if word.quote_style.is_some() => word.value.clone(),
        Some(Token::Word(word)) => word.value.to_lowercase(),
        _ => return Err(wrong("a name")),
    };
    let (mut types, mut token) = (Vec::new(), next(&mut rest));
    if token == Some(&Token::LParen) {
        types = types_of(&mut rest).ok_or_else(|| wrong("the end of its types"))?;
        let is_space = |token: &Token| matches!(token, Token::Whitespace(_));
        if types.iter().any(|one| one.iter().all(is_space)) {
            return Err(wrong("one of its types"));
        }
        token = next(&mut rest);
    }
    if !matches!(token, Some(Token::Word(word)) if word.keyword == Keyword::AS) {
        return Err(wrong("AS"));
    }
    let text = rest.iter().map(|token| token.token.to_string()).collect::<String>();
    Ok(Some((name, Prepared::of_tokens(text.trim().to_string(), rest.to_vec(), types)?)))
}

/// The next token that is not a space.
fn next<'a>(rest: &mut &'a [TokenWithSpan]) -> Option<&'a Token> {
    while let [first, others @ ..] = rest {
        *rest = others;
        if !matches!(first.token, Token::Whitespace(_)) {
            return Some(&first.token);
        }
    }
    None
}

/// What is between commas up to the bracket's end.
fn types_of(rest: &mut &[TokenWithSpan]) -> Option<Vec<Vec<Token>>> {
    let (mut types, mut depth) = (vec![Vec::new()], 0);
    loop {
        let [first, others @ ..] = *rest else { return None };
        *rest = others;
        match &first.token {
            Token::RParen if depth == 0 => return Some(types),
            Token::Comma if depth == 0 => types.push(Vec::new()),
            token => {
                match token {
                    Token::LParen => depth += 1,
                    Token::RParen => depth -= 1,
                    _ => {}
                }
                types.last_mut()?.push(token.clone());
            }
        }
    }
}

/// The type's name in SQL, as tokens.
pub(crate) fn type_tokens(data_type: &DataType) -> Result<Vec<Token>> {
    let name = match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let mut tokens = type_tokens(item.data_type())?;
            tokens.extend([Token::LBracket, Token::RBracket]);
            return Ok(tokens);
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTEA".into(),
        DataType::Time32(_) | DataType::Time64(_) => "TIME".into(),
        DataType::Interval(_) => "INTERVAL".into(),
        // Where it is shown says nothing about what it is.
        DataType::Timestamp(_, Some(_)) => "TIMESTAMP WITH TIME ZONE".into(),
        other => sql_name(other),
    };
    Ok(planner::tokens(&name)?.into_iter().map(|token| token.token).collect())
}
