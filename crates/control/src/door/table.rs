//! What each route asks of whoever comes, kept with the route itself.
//!
//! A door writes its routes down as rows of a [`Table`]: methods, path, what it [`Needs`], handler. The router is made of
//! the same rows, with the door's guard laid around each handler, so the check runs on the route that matched and never
//! on the text of a path: a spelling that leads to a handler leads through its guard.
//!
//! ```text
//!   rows ──┬──▶ guarded() ──▶ axum's router: match the route ──▶ guard(needs) ──▶ handler
//!          └──▶ routes()  ──▶ tests and `cove redteam` walk every row
//! ```

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};

use crate::Scope;

/// What a route asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it tells nothing of anybody's.
    Nothing,
    /// An API key of at least this scope.
    Key(Scope),
    /// An API key, sent over the socket that the request becomes.
    KeyOnSocket,
    /// An API key of at least this scope, or the sandbox's own token.
    Toolbox(Scope),
    /// As for [`Needs::Toolbox`], or a link that is signed for this file.
    ToolboxFile(Scope),
    /// Nothing, and the sandbox is not woken for it.
    Life,
    /// The sandbox's access token, unless it was made to ask for none.
    Access,
    /// As for [`Needs::Access`], or a link that is signed for this file.
    AccessOrSignature,
    /// The sandbox's access token or its traffic token, unless it was made to ask for none.
    AccessOrTraffic,
    /// A link that is signed for this upload.
    SignedUpload,
    /// The volume's own token.
    VolumeToken,
    /// What the sandbox asks for at its ports: nothing where it is public, else a key, a token or a link.
    Port,
    /// A proof that another server of the same store asks.
    Peer,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub methods: Vec<&'static str>,
    /// Below the door's prefix, as axum writes it.
    pub path: String,
    pub needs: Needs,
}

/// A door's routes. `S` is the state of its handlers.
pub struct Table<S> {
    rows: Vec<(Route, MethodRouter<S>)>,
}

/// Every method that a program in a sandbox may want. `TRACE` and `CONNECT` are for the hop before us.
const ANY: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

fn filter(method: &str) -> MethodFilter {
    match method {
        "GET" => MethodFilter::GET,
        "HEAD" => MethodFilter::HEAD,
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        "PATCH" => MethodFilter::PATCH,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::OPTIONS,
    }
}

impl<S: Clone + Send + Sync + 'static> Table<S> {
    #[expect(
        clippy::new_without_default,
        reason = "a table is written down from its first row on, never filled in later"
    )]
    pub fn new() -> Self {
        Table { rows: Vec::new() }
    }

    /// A row for several methods at once.
    pub fn on<H: Handler<T, S>, T: 'static>(
        mut self,
        methods: &[&'static str],
        path: &str,
        needs: Needs,
        handler: H,
    ) -> Self {
        let Some(any_of) = methods.iter().map(|method| filter(method)).reduce(MethodFilter::or) else { return self };
        let route = Route { methods: methods.to_vec(), path: path.to_owned(), needs };
        self.rows.push((route, on(any_of, handler)));
        self
    }

    /// `HEAD` too, as everywhere.
    pub fn get<H: Handler<T, S>, T: 'static>(self, path: &str, needs: Needs, handler: H) -> Self {
        self.on(&["GET"], path, needs, handler)
    }

    pub fn post<H: Handler<T, S>, T: 'static>(self, path: &str, needs: Needs, handler: H) -> Self {
        self.on(&["POST"], path, needs, handler)
    }

    pub fn put<H: Handler<T, S>, T: 'static>(self, path: &str, needs: Needs, handler: H) -> Self {
        self.on(&["PUT"], path, needs, handler)
    }

    pub fn patch<H: Handler<T, S>, T: 'static>(self, path: &str, needs: Needs, handler: H) -> Self {
        self.on(&["PATCH"], path, needs, handler)
    }

    pub fn delete<H: Handler<T, S>, T: 'static>(self, path: &str, needs: Needs, handler: H) -> Self {
        self.on(&["DELETE"], path, needs, handler)
    }

    pub fn any<H: Handler<T, S>, T: 'static>(self, path: &str, needs: Needs, handler: H) -> Self {
        self.on(&ANY, path, needs, handler)
    }

    /// With another's rows.
    pub fn and(mut self, other: Self) -> Self {
        self.rows.extend(other.rows);
        self
    }

    /// The rows, without what answers them.
    pub fn routes(self) -> Vec<Route> {
        self.rows.into_iter().map(|(route, _)| route).collect()
    }

    /// The router: `guard` is laid around each handler with what its row asks for.
    pub fn guarded(self, guard: impl Fn(Needs, MethodRouter<S>) -> MethodRouter<S>) -> Router<S> {
        let rows = self.rows.into_iter();
        rows.fold(Router::new(), |router, (route, handler)| router.route(&route.path, guard(route.needs, handler)))
    }
}
