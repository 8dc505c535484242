//! How pools are filled: in the pauses between requests, as far as there are any.
//!
//! A member takes a processor for some milliseconds and its Python for tens of them, which whoever has just been given a
//! sandbox wants for its first command. So while requests are under way a pool is kept half full, with one member made at a time;
//! the rest of it, and the interpreters, wait until nobody has been served for a moment.

use std::time::Duration;

use super::members::{Haste, Member, Waiting};
use crate::interpreter::Warmth;
use crate::key::Quota;
use crate::ledger::{Claim, disk_of};
use crate::sandbox::cause::{Cause, Code};
use crate::sandbox::state::Event;
use crate::sandbox::{NetworkPolicy, NewSandbox, Sandbox, Timers};
use crate::store::sandboxes::Inserted;
use crate::{App, Caller, Error, Scope};

/// A pause that is long enough to make members in.
const PAUSE: Duration = Duration::from_millis(20);
/// A pause that is long enough to start interpreters in.
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// How often pools are looked at where nobody reports a want.
const LOOK: Duration = Duration::from_secs(1);

/// How far a look at the pools came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Wholly,
    /// Something waits for a pause.
    InPart,
}

impl App {
    /// Fills pools until the server ends.
    pub(crate) async fn keep_pools(self) {
        let ending = self.ending().clone();
        loop {
            let next = match self.fill_pools().await {
                Ok(Filled::Wholly) => LOOK,
                Ok(Filled::InPart) => PAUSE,
                Err(error) => {
                    tracing::warn!(%error, detail = error.detail(), "fill the pools");
                    LOOK
                }
            };
            tokio::select! {
                () = ending.cancelled() => return,
                () = tokio::time::sleep(next) => {}
                () = self.pools().wanted.notified() => {}
            }
        }
    }

    /// Makes what is missing, removes what is too much, and warms what is cold.
    async fn fill_pools(&self) -> Result<Filled, Error> {
        let pause = self.traffic().pause();
        let haste = if pause >= PAUSE { Haste::Pause } else { Haste::Requests };
        let warming = if pause >= LONG_PAUSE { Haste::Pause } else { Haste::Requests };
        let (mut missing, mut surplus, mut cold) = (Vec::new(), Vec::new(), Vec::new());
        let mut filled = Filled::Wholly;
        {
            let mut all = self.pools().all.lock().expect("no panic while held");
            for (name, members) in all.iter_mut() {
                surplus.extend(members.surplus());
                missing.extend((0..members.begin(haste)).map(|_| name.clone()));
                cold.extend(members.begin_warming(warming));
                if members.is_short() || members.is_cold() {
                    filled = Filled::InPart;
                }
            }
        }
        for (organisation, template) in missing {
            let app = self.clone();
            self.tasks().spawn(async move { app.make_member(organisation, template).await });
        }
        for member in cold {
            let app = self.clone();
            self.tasks().spawn(async move { app.warm_member(&member, Warmth::Ready).await });
        }
        for member in surplus {
            let cause = Cause::new(Code::Pool, "the pool was made smaller", self.now());
            self.change_state(&member.id, Event::Destroy, cause).await?;
        }
        Ok(filled)
    }

    async fn make_member(&self, organisation: String, template: String) {
        let made = self.launch_member(&organisation, &template).await;
        if let Err(error) = &made {
            tracing::warn!(template, %error, detail = error.detail(), "fill a pool");
            // Pauses before the next try: the cause may need a moment.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.pools().with(&organisation, &template, |members| {
            members.making = members.making.saturating_sub(1);
            made.into_iter().for_each(|member| members.add(member));
        });
        self.pools().wake();
    }

    async fn launch_member(&self, organisation: &str, template: &str) -> Result<Member, Error> {
        let caller = Caller { organisation: organisation.to_owned(), key: "pool".into(), scopes: vec![Scope::Write] };
        let new =
            NewSandbox { template: Some(template.to_owned()), network: NetworkPolicy::open(), ..NewSandbox::default() };
        let (mut member, made_from) = self.draft(&caller, &new).await?;
        member.pool = Some(template.to_owned());
        member.timers = Timers { idle_seconds: None, ..Timers::default() };
        member.cause = Cause::new(Code::Pool, "made for a warm pool", self.now());
        let quota = self.quota(organisation).await?;
        let place = self.ledger().reserve(organisation, &quota, disk_of(&member))?;
        let id = member.id.clone();
        let made = self.launch_in_room(member, place, &quota).await;
        if made.is_err() {
            self.capacity().release(&id);
        }
        let member = Member { sandbox: made?, interpreter: Waiting::NotYet };
        self.boot(&member.sandbox, &made_from).await;
        if !made_from.interpreter {
            return Ok(member);
        }
        self.warm_member(&member.sandbox, Warmth::Imported).await;
        Ok(Member { interpreter: Waiting::Yes, ..member })
    }

    /// Starts the member's Python ahead of its first cell. A member without it works too; its first cell is slower.
    async fn warm_member(&self, member: &Sandbox, warmth: Warmth) {
        let _turn = self.pools().warming.acquire().await;
        if let Ok(provider) = self.provider(&member.provider)
            && let Err(error) = self.interpreter().warm(&member.id, &provider.guest(&member.handle()), warmth).await
        {
            tracing::debug!(sandbox = %member.id, %error, "warm the interpreter of a pool's member");
        }
        self.pools().with(&member.organisation, &member.template, |members| members.warmed(&member.id));
        self.pools().wake();
    }

    pub(crate) async fn launch_in_room(
        &self,
        member: Sandbox,
        mut place: Claim<'_>,
        quota: &Quota,
    ) -> Result<Sandbox, Error> {
        let _layers = self.layers_here(&member.provider, &member.image.root).await?;
        let _turn = self.room_for(&member).await?;
        let _lock = self.locks().lock(&member.id).await;
        match self.store().insert_sandbox_asked(&member, None, None, Some(quota)).await? {
            Inserted::New => {
                place.is_written();
                drop(place);
                let id = member.id.clone();
                let made = self.launch_new(member).await;
                if made.as_ref().is_err_and(Error::is_of_the_database) {
                    self.nobody_knows(&id);
                }
                made
            }
            other => Err(Error::internal(format!("a pool member without a name: {other:?}"))),
        }
    }
}
