//! `cove template build`: asks the server for a build, of what the flags say (`order`) or of a recipe (`recipe`).

use clap::Args;

use super::order::Order;
use crate::complaint::Complaint;

/// Build a template
///
/// From a recipe, an image of a registry, a Dockerfile with its files, an image in a file, or another template and
/// commands. The server builds it and this program shows the log; Ctrl-C cancels the build. Steps that were done before
/// are not done again.
///
/// A name alone is that of a recipe: `cove template recipes` lists them. `code-interpreter` has IPython, numpy, pandas,
/// matplotlib, scipy, scikit-learn, seaborn, plotly, openpyxl and what else E2B's template has. Settings of pip and npm
/// and proxies are taken from the environment of this command. With an operator's key a recipe is built for everybody.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove template build code-interpreter --package polars
  cove template build code-interpreter --variant small
  cove template build tools --from base --run 'echo ready > /etc/motd'
  cove template build web --image debian:12 --run 'apt-get update' --start nginx
  cove template build app ./project --build-arg VERSION=2
  cove template build app ./project --secret id=token,src=token.txt
  cove template build app:v2 --file ./project/Dockerfile ./project --no-cache
  cove template build old --archive image.tar")]
pub struct Arguments {
    /// Its name, `NAME` or `NAME:TAG`; alone, the recipe of this name
    #[arg(add = crate::complete::recipes())]
    name: String,
    #[command(flatten)]
    order: Order,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    arguments.order.run(&arguments.name, arguments.json)
}
