//! `POST /agents/{agent_id}/files`, `POST /files`, `PUT …/{upload_id}/upload`, `POST
//! /files/confirm`, `GET` and `DELETE /objects/{object_key}`.

mod confirm;
mod delete;
mod objects;
mod put;
mod request;

pub use self::{
    confirm::confirm,
    delete::delete,
    objects::read,
    put::{put_of_agent, put_of_user},
    request::{request_of_agent, request_of_user},
};
