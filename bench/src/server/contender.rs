//! Who is asked what.

use tollgate_bench::question::Question;
use tollgate_bench::serve::Protocol;

use crate::floor::Floor;
use crate::process::Program;

/// A row of a table.
pub struct Contender {
    pub name: &'static str,
    pub program: Program,
    pub question: Question,
}

impl Contender {
    const fn new(name: &'static str, program: Program, question: Question) -> Self {
        Self { name, program, question }
    }

    pub fn protocol(&self) -> Protocol {
        match self.question {
            Question::Ping | Question::ClThrottle | Question::TgCheck | Question::Throttle => {
                Protocol::Resp
            }
            Question::PostCheck | Question::PostThrottle | Question::Get => Protocol::Http,
            Question::ShouldRateLimit | Question::GrpcThrottle | Question::Get2 => Protocol::Grpc,
        }
    }
}

/// The first of each is the floor.
pub const RESP: &[Contender] = &[
    Contender::new("redis-server PING", Program::Redis, Question::Ping),
    Contender::new("bare tokio", Program::Floor(Floor::Resp), Question::ClThrottle),
    Contender::new("tollgate CL.THROTTLE", Program::Tollgate, Question::ClThrottle),
    Contender::new("tollgate TG.CHECK", Program::Tollgate, Question::TgCheck),
    Contender::new("throttlecrab THROTTLE", Program::Throttlecrab, Question::Throttle),
];

pub const GRPC: &[Contender] = &[
    Contender::new("bare hyper", Program::Floor(Floor::Grpc), Question::ShouldRateLimit),
    Contender::new("tollgate", Program::Tollgate, Question::ShouldRateLimit),
    Contender::new("throttlecrab", Program::Throttlecrab, Question::GrpcThrottle),
];

pub const HTTP: &[Contender] = &[
    Contender::new("bare hyper", Program::Floor(Floor::Http), Question::PostCheck),
    Contender::new("tollgate", Program::Tollgate, Question::PostCheck),
    Contender::new("throttlecrab", Program::Throttlecrab, Question::PostThrottle),
];
