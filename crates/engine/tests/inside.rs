//! What programs find in the built-in template: packages install, names resolve, text is UTF-8.

mod house;

use cove_engine::Spec;
use cove_engine::spec::{Limits, SandboxId, Storage};
use house::House;

/// A package of one program, as pip takes it; made by Python itself, so that no index is needed.
const WHEEL: &str = r#"
import zipfile
name, version = "hello_cove", "1.0"
info = f"{name}-{version}.dist-info"
with zipfile.ZipFile(f"/tmp/{name}-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr("hello_cove.py", "def main(): print('hello from a package')\n")
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nhello-cove = hello_cove:main\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;

fn launch(house: &House) -> SandboxId {
    let limits = Limits { memory: 512 << 20, disk: Some(256 << 20), ..Limits::default() };
    let id = house.engine.launch(&Spec { limits, ..house.spec() }).unwrap().id;
    house.output(&id, &format!("python3 -c '{}'", WHEEL.replace('\'', "'\\''")));
    // An index of its own on loopback: what `pip install NAME` asks.
    house.output(
        &id,
        "mkdir -p /tmp/index/simple/hello-cove && cp /tmp/*.whl /tmp/index/simple/hello-cove/ && cd /tmp/index && \
         (setsid python3 -m http.server 8077 >/dev/null 2>&1 &) && \
         for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8077))' 2>/dev/null && exit; \
         sleep 0.1; done; exit 1",
    );
    id
}

const INSTALL: &str = "install --quiet --index-url http://127.0.0.1:8077/simple hello-cove";

#[test]
fn pip_installs_for_the_user_and_the_program_is_on_the_path() {
    let house = House::open();
    for pip in ["pip", "pip3", "python3 -m pip"] {
        let id = launch(&house);
        assert_eq!(house.output(&id, &format!("{pip} {INSTALL} && hello-cove")), "hello from a package", "{pip}");
        let login = house.output(&id, "env -i HOME=$HOME bash -lc 'command -v hello-cove; echo $LANG'");
        assert_eq!(login, "/home/user/.local/bin/hello-cove\nC.UTF-8");
        house.engine.destroy(&id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn pip_installs_for_root_and_for_everybody() {
    let house = House::open();
    let id = launch(&house);
    let ran = house.run_as(&id, Some("root"), &format!("pip {INSTALL} && hello-cove"));
    assert_eq!((ran.code, ran.stdout.trim()), (0, "hello from a package"), "{ran:?}");
    assert_eq!(house.output(&id, "hello-cove"), "hello from a package", "the user has it too");
    assert_eq!(house.output(&id, &format!("sudo -n pip {INSTALL} && sudo -n hello-cove")), "hello from a package");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn an_environment_of_its_own_is_made_and_filled() {
    let house = House::open();
    let id = launch(&house);
    let made = house
        .output(&id, &format!("python3 -m venv /tmp/own && /tmp/own/bin/pip {INSTALL} && /tmp/own/bin/hello-cove"));
    assert_eq!(made, "hello from a package");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn npm_installs_globally_for_the_user_and_for_root() {
    if !std::path::Path::new("/usr/bin/npm").exists() {
        return cove_testkit::skip(cove_testkit::Need::Npm, "there is no /usr/bin/npm");
    }
    let house = House::open();
    let id = launch(&house);
    house.output(
        &id,
        "mkdir /tmp/greet && cd /tmp/greet && printf '#!/usr/bin/env node\\nconsole.log(\"hello from npm\")\\n' > greet.js && \
         echo '{\"name\":\"greet\",\"version\":\"1.0.0\",\"bin\":{\"greet\":\"greet.js\"}}' > package.json && npm pack --silent",
    );
    let install = "npm install --silent --offline -g /tmp/greet/greet-1.0.0.tgz && greet";
    assert_eq!(house.output(&id, install), "hello from npm");
    assert_eq!(house.output(&id, "command -v greet"), "/home/user/.local/bin/greet");
    let ran = house.run_as(&id, Some("root"), install);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "hello from npm"), "{ran:?}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn apt_tells_what_the_host_has_and_what_to_do_instead() {
    if !std::path::Path::new("/usr/bin/apt-get").exists() {
        return cove_testkit::skip(cove_testkit::Need::AptGet, "there is no /usr/bin/apt-get");
    }
    let house = House::open();
    let id = house.launch();
    for line in
        ["apt-get update && apt-get install -y bash coreutils", "sudo -n apt update && sudo -n apt install -y bash"]
    {
        let ran = house.run(&id, line);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let ran = house.run(&id, "sudo -n apt-get install -y bash no-such-thing");
    assert_eq!(ran.code, 100, "{ran:?}");
    assert!(
        ran.stderr.contains("cannot install no-such-thing: ") && ran.stderr.contains("pip install NAME"),
        "{ran:?}"
    );
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn text_is_utf_8_names_resolve_and_both_users_are_one() {
    let house = House::open();
    let id = house.launch();
    assert_eq!(
        house.output(&id, "python3 -c 'import sys; print(sys.stdout.encoding)' | tr A-Z a-z; locale charmap"),
        "utf-8\nUTF-8"
    );
    assert_eq!(
        house.output(&id, "python3 -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'"),
        "127.0.1.1"
    );
    assert_eq!(house.output(&id, "echo $PATH | cut -d: -f1"), "/home/user/.local/bin");
    let other = house.run_as(
        &id,
        Some("daytona"),
        "id -u; echo $USER; pwd; touch ~/mine; echo $PATH | cut -d: -f1; sudo -n id -u",
    );
    assert_eq!(other.stdout, "1000\ndaytona\n/home/daytona\n/home/daytona/.local/bin\n0\n", "{other:?}");
    assert_eq!(house.output(&id, "touch a && chown daytona:daytona a && stat -c '%u %g' a"), "1000 1000");
    assert_eq!(house.run_as(&id, Some("root"), "echo $PATH | cut -d: -f1").stdout, "/root/.local/bin\n");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn df_shows_the_disk_that_the_sandbox_has() {
    let house = House::open();
    let limits = Limits { disk: Some(256 << 20), ..house.spec().limits };
    let id = house.engine.launch(&Spec { storage: Storage::Disk, limits, ..house.spec() }).unwrap().id;
    assert_eq!(house.output(&id, "df -k / | tail -n 1 | tr -s ' ' | cut -d' ' -f2"), "262144");
    assert_eq!(house.output(&id, "df -h /tmp | tail -n 1 | tr -s ' ' | cut -d' ' -f2"), "256M");
    // Also what was written just now.
    let used = "head -c 100M /dev/zero > ~/big; df -k / | tail -n 1 | tr -s ' ' | cut -d' ' -f3";
    let kilobytes: u64 = house.output(&id, used).parse().unwrap();
    assert!((100 << 10..120 << 10).contains(&kilobytes), "{kilobytes} kB");
    assert_eq!(house.run(&id, "df /nowhere").code, 1);
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}
