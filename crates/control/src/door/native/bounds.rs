//! Writes the border's budgets into the document: `maxLength`, `maxItems` and `maxProperties` of whatever a client sends.
//!
//! From the same table that refuses, so that document and server cannot differ.

use std::collections::BTreeSet;

use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, Schema, SchemaType, Type};
use utoipa::openapi::{OpenApi, RefOr};

use crate::border::CONTENT;
use crate::border::field::{self, Budget, Keys};
use crate::door::{parts, size};

/// An `Idempotency-Key`.
const KEY: usize = 255;

pub fn tell(document: &mut OpenApi) {
    let mut named = BTreeSet::new();
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            for parameter in operation.parameters.iter_mut().flatten() {
                tell_of_parameter(parameter);
            }
            tell_of_body(&format!("/api{path}"), operation, &mut named);
        }
    }
    let Some(components) = &mut document.components else { return };
    // What a body names may name others.
    let mut told = BTreeSet::new();
    while let Some(name) = named.pop_first() {
        if let (true, Some(RefOr::T(schema))) = (told.insert(name.clone()), components.schemas.get_mut(&name)) {
            tell_of_fields(schema, &mut named);
        }
        named.retain(|name| !told.contains(name));
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

fn tell_of_parameter(parameter: &mut Parameter) {
    let length = match parameter.parameter_in {
        ParameterIn::Path => parts::PART,
        ParameterIn::Query => field::of_parameter(&parameter.name).length,
        ParameterIn::Header if parameter.name == "Idempotency-Key" => KEY,
        ParameterIn::Header => parts::HEADER,
        ParameterIn::Cookie => return,
    };
    if let Some(RefOr::T(schema)) = &mut parameter.schema {
        let budget = Budget { length, ..field::of_parameter(&parameter.name) };
        tell_of_value(schema, &budget, &mut BTreeSet::new());
    }
}

fn tell_of_body(path: &str, operation: &mut Operation, named: &mut BTreeSet<String>) {
    let Some(body) = &mut operation.request_body else { return };
    for (kind, content) in &mut body.content {
        if kind == "application/json" {
            body.description.get_or_insert_with(|| format!("At most {} KiB.", size::most_of(path) >> 10));
            match &mut content.schema {
                Some(RefOr::T(schema)) => tell_of_fields(schema, named),
                Some(RefOr::Ref(reference)) => note(&reference.ref_location, named),
                None => {}
            }
        } else if kind == "application/x-tar" {
            // Bytes as they are have no schema: the type that a handler takes reads as a list of numbers.
            content.schema = None;
        }
    }
}

fn note(reference: &str, named: &mut BTreeSet<String>) {
    named.extend(reference.rsplit('/').next().map(ToOwned::to_owned));
}

/// The fields of an object, each by its own name.
fn tell_of_fields(schema: &mut Schema, named: &mut BTreeSet<String>) {
    match schema {
        Schema::Object(object) => {
            for (name, field) in &mut object.properties {
                match field {
                    RefOr::T(schema) => tell_of_value(schema, &field::of(name), named),
                    RefOr::Ref(reference) => note(&reference.ref_location, named),
                }
            }
        }
        Schema::OneOf(_) | Schema::AllOf(_) | Schema::AnyOf(_) => each(schema, named, tell_of_fields),
        _ => {}
    }
}

fn each(schema: &mut Schema, named: &mut BTreeSet<String>, tell: fn(&mut Schema, &mut BTreeSet<String>)) {
    let items = match schema {
        Schema::OneOf(one) => &mut one.items,
        Schema::AllOf(all) => &mut all.items,
        Schema::AnyOf(any) => &mut any.items,
        _ => return,
    };
    for item in items {
        match item {
            RefOr::T(schema) => tell(schema, named),
            RefOr::Ref(reference) => note(&reference.ref_location, named),
        }
    }
}

/// One value, by the budget of the field that holds it.
fn tell_of_value(schema: &mut Schema, budget: &Budget, named: &mut BTreeSet<String>) {
    match schema {
        Schema::Object(object) if is(&object.schema_type, &Type::String) => {
            // Times and words from a list have their own bounds; content has that of the whole body.
            if object.format.is_none() && object.enum_values.is_none() && budget.length < CONTENT {
                object.max_length = object.max_length.or(Some(budget.length));
            }
        }
        Schema::Object(object) if is(&object.schema_type, &Type::Object) => {
            if let (Keys::Chosen(length), Some(values)) = (budget.keys, &mut object.additional_properties) {
                object.max_properties = Some(budget.items);
                if let Some(Schema::Object(key)) = object.property_names.as_deref_mut() {
                    key.max_length = Some(length);
                }
                if let AdditionalProperties::RefOr(RefOr::T(value)) = &mut **values {
                    tell_of_value(value, budget, named);
                }
            } else {
                tell_of_fields(schema, named);
            }
        }
        Schema::Array(array) => {
            array.max_items = array.max_items.or(Some(budget.items));
            match &mut array.items {
                ArrayItems::RefOrSchema(items) => match &mut **items {
                    RefOr::T(item) => tell_of_value(item, budget, named),
                    RefOr::Ref(reference) => note(&reference.ref_location, named),
                },
                ArrayItems::False => {}
            }
        }
        _ => each(schema, named, tell_of_fields),
    }
}

fn is(kind: &SchemaType, wanted: &Type) -> bool {
    match kind {
        SchemaType::Type(kind) => kind == wanted,
        SchemaType::Array(kinds) => kinds.contains(wanted),
        SchemaType::AnyValue => false,
    }
}
