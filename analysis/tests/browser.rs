//! The page in a real browser with the network off: it opens, a table is sorted by a click, a screenshot shows something.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use analysis::dataset::load;
use analysis::report::{self, Extras, Options};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn browser(arguments: &[&str], page: &Path) -> Option<Vec<u8>> {
    let fixed = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ];
    let profile = tempfile::tempdir().unwrap();
    for name in BROWSERS {
        let output = Command::new(name)
            .args(fixed)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(arguments)
            .arg(format!("file://{}", page.display()))
            .stderr(Stdio::null())
            .output();
        match output {
            Ok(output) => {
                assert!(output.status.success(), "{name} failed: {}", output.status);
                return Some(output.stdout);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    None
}

#[test]
fn the_page_opens_sorts_and_shows_itself_without_a_network() {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/two-worlds");
    let data = load(&[recording]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default();
    let document = report::build(&data, &options, Extras::default());
    report::write(&document, &data, &options, dir.path()).unwrap();
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    for word in ["http://", "https://", "src=", "<link", "@import", "url("] {
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!outside.contains(word), "the page refers to something outside itself: {word}");
    }
    // The second click on the CV heading of the configurations' group table sorts it downwards.
    let click = "<script>const t=document.querySelectorAll('#groups table')[0];const h=[...t.querySelectorAll('th')]\
                 .find(e=>e.textContent==='CV');h.click();h.click();document.title='sorted '+[...t.tBodies[0].rows]\
                 .map(r=>Number(r.cells[9].dataset.v)).every((v,i,a)=>i===0||a[i-1]>=v)+' '+t.tBodies[0].rows.length;</script>";
    let clicked = dir.path().join("clicked.html");
    fs::write(&clicked, page.replace("</body>", &format!("{click}</body>"))).unwrap();
    let Some(dom) = browser(&["--dump-dom"], &clicked) else {
        eprintln!("skipped: none of {BROWSERS:?} is installed");
        return;
    };
    let dom = String::from_utf8(dom).unwrap();
    let rows = document.sections.iter().find(|section| section.id == "groups").unwrap().tables[0].rows.len();
    assert!(dom.contains(&format!("<title>sorted true {rows}</title>")), "the click did not sort the table");
    let picture = dir.path().join("page.png");
    let shot = format!("--screenshot={}", picture.display());
    browser(&[&shot, "--window-size=1280,2000"], &dir.path().join("report.html")).unwrap();
    assert!(fs::read(&picture).unwrap().len() > 50_000, "the screenshot is empty");
}
