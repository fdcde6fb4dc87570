"""A corpus of credentials and names; assembled at run time, so that no scanner takes them for real.

Each holds random letters of its own: a test looks for these in what was written.
"""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Iterator
from typing import NamedTuple

LETTERS = string.ascii_letters
MIXED = LETTERS + string.digits
_UPPER, _HEX = string.ascii_uppercase + string.digits, string.digits + "abcdef"


class Planted(NamedTuple):
    """A text, and what of it must not be found anywhere."""

    kind: str
    text: str
    secret: str


_TOKENS = {  # what comes before the random part, its letters and length
    "AWS key": ("AK" + "IA", _UPPER, 16),
    "AWS session": ("AS" + "IA", _UPPER, 16),
    "Google": ("AI" + "za", MIXED, 35),
    "Google OAuth": ("ya" + "29.", MIXED, 40),
    "GitHub": ("gh" + "p_", MIXED, 36),
    "GitHub app": ("gh" + "s_", MIXED, 36),
    "GitHub fine": ("github" + "_pat_", MIXED, 60),
    "GitLab": ("gl" + "pat-7", MIXED, 20),
    "Hugging Face": ("h" + "f_", LETTERS, 34),
    "OpenAI": ("s" + "k-proj-7", MIXED, 40),
    "Anthropic": ("s" + "k-ant-api03-", MIXED, 40),
    "NVIDIA": ("nv" + "api-7", MIXED, 40),
    "Slack": ("xo" + "xb-7", MIXED, 30),
    "Stripe": ("sk" + "_live_", MIXED, 24),
    "npm": ("np" + "m_", MIXED, 36),
    "PyPI": ("py" + "pi-7", MIXED, 60),
    "SendGrid": ("S" + "G.abcdefghij.", MIXED, 40),
    "Databricks": ("da" + "pi", _HEX, 32),
    "Vault": ("hv" + "s.7", MIXED, 30),
    "Docker": ("dckr" + "_pat_", MIXED, 27),
    "JSON web token": ("ey" + "JhbGciOiJIUzI1NiJ9.", MIXED, 40),
    "W&B": ("", _HEX, 40),
    "hex 64": ("", _HEX, 64),
    "base64": ("aA1", MIXED, 45),
    "Groq": ("gs" + "k_", MIXED, 40),
    "RunPod": ("rp" + "a_", MIXED, 40),
    "Fireworks": ("f" + "w_", MIXED, 22),
    "Together": ("tgp" + "_v1_", MIXED, 40),
    "Lambda": ("secret" + "_lab_", MIXED, 40),
    "Perplexity": ("pp" + "lx-", MIXED, 40),
    "xAI": ("xa" + "i-", MIXED, 60),
    "Brevo": ("xkey" + "sib-", _HEX, 64),
    "LangSmith": ("ls" + "v2_pt_", _HEX, 32),
    "Terraform": ("x.atlas" + "v1.", MIXED, 60),
    "Azure client": ("abc8" + "Q~", MIXED, 34),
    "Hugging Face organisation": ("api" + "_org_", LETTERS, 34),
    "W&B of an own server": ("loc" + "al-", _HEX, 40),
    "Twilio": ("S" + "K", _HEX, 32),
    "Mailgun": ("ke" + "y-", _HEX, 32),
    "Telegram": ("https://api.telegram.org/bot123456789:" + "AA", MIXED, 33),
    "Slack webhook": ("https://hooks.slack" + ".com/services/T0/B0/", MIXED, 24),
    "Slack workflow": ("https://hooks.slack" + ".com/workflows/T0/A0/31/", MIXED, 24),
    "Slack trigger": ("https://hooks.slack" + ".com/triggers/T0/31/", MIXED, 24),
    "Opsgenie": ("Genie" + "Key ", MIXED, 24),
    "Google refresh": ("1/" + "/0", MIXED, 60),
    "MUNGE": ("MUN" + "GE:", MIXED, 40),
    "GitLab job": ("gl" + "cbt-64_", MIXED, 14),
    "Modal": ("a" + "k-7", LETTERS, 21),
    "SiliconFlow": ("s" + "k-", string.ascii_lowercase, 48),
    "Cerebras": ("cs" + "k-7", string.ascii_lowercase, 47),
    "Pulumi": ("pu" + "l-", _HEX, 40),
    "Doppler": ("d" + "p.st.prd.", MIXED, 43),
    "Databricks OAuth": ("do" + "se", _HEX, 32),
    "ModelScope": ("m" + "s-01234567-89ab-cdef-0123-", _HEX, 12),
    "Airtable": ("pa" + "tAbCdEfGhIjKlMn.", _HEX, 64),
    "Cloudflare": ("v1" + ".0-0123456789abcdef-", _HEX, 60),
    "PASETO": ("v2" + ".public.", MIXED, 60),
    "Lambda Labs": ("sec" + "ret_my_key_" + 16 * "0a" + ".", MIXED, 32),
    "password hash": ("me:$apr1" + "$abcdefgh$", MIXED, 22),
    "bcrypt": ("$2b" + "$12$", MIXED, 53),
}

_PASSWORDS = {  # texts around a password that has no form of its own
    "URL": "https://user:{}@mirror.example/x",
    "URL token": "https://{}@mirror.example/x.git",
    "database": "postgresql://root:{}@db:5432/runs",
    "redis": "redis://:{}@cache:6379",
    "scp": "alice:{}@host.example",
    "bearer": "curl -H 'Authorization: Bearer {}' x",
    "bearer word": "bearer {}",
    "basic": "Authorization: Basic {}",
    "header": "X-Api-Key: {}",
    "cookie": "Set-Cookie: session={}",
    "option": "train.py --api-key {} --lr 1",
    "option =": "train.py --hf_token={} --lr 1",
    "option password": "mpirun -x --password {} a.out",
    "JSON": '{{"password": "{}", "b": 1}}',
    "JSON in JSON": '{{\\"client_secret\\": \\"{}\\"}}',
    "YAML": "db_password: {}",
    "assignment": "WANDB_API_KEY={} python train.py",
    "camel": "clientSecret={}",
    "Azure": "DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=x",
    "Azure bus": "Endpoint=sb://x/;SharedAccessKey={}",
    "Azure SAS": "https://x.blob.example/c?sv=2020&sig={}&se=2030",
    "presigned": "https://s3.example/b?X-Amz-Signature={}",
    "presigned token": "https://s3.example/b?X-Amz-Security-Token={}",
    "ODBC": "Server=x;Uid=sa;Pwd={};",
    "AWS": "aws_secret_access_key = {}",
    "passphrase": "ssh passphrase={}",
    "private key": "-----BEGIN RSA PRIVATE" + " KEY-----\n{}\n-----END RSA PRIVATE" + " KEY-----",
    "cut private key": "-----BEGIN OPENSSH PRIVATE" + " KEY-----\n{}",
    "netrc": "machine x login y password={}",
    "kubernetes": "client-key-secret: {}",
    "bytes": "{{'token': b'{}'}}",
    "list of arguments": "Command '['train.py', '--api-key', '{}']' returned 1",
    "tab": "train.py --token\t{}",
    "pair": "[('password', '{}'), ('user', 'me')]",
    "pair of a header": "[('Authorization', '{}')]",
    "environ": "os.environ['WANDB_API_KEY'] = '{}'",
    "list": '{{"password": ["{}"]}}',
    "section": '{{"credentials": {{"value": "{}"}}}}',
    "tuple": "api_key=('{}',)",
    "angles": "token=<{}>",
    "escaped quote": 'password="a\\"{}" x=1',
    "cut quote": "token: '{}",
    "case": "pAsSwOrD={}",
    "walrus": "password := {}",
    "arrow": "password -> {}",
    "comparison": "password == {}",
    "percent": "password%3D{}",
    "key of two words": "secret access key: {}",
    "quoted cookie": 'Set-Cookie: session="{}"; path=/',
    "no scheme": "//user:{}@mirror/x",
    "no host": "postgres://root:{}@/runs",
    "localhost": "user:{}@localhost",
    "curl": "curl -u admin:{} https://x/y",
    "curl joined": "curl -suadmin:{} https://x/y",
    "curl long": "curl --user=admin:{} https://x/y",
    "curl in a list": "['curl', '-u', 'admin:{}', 'https://x']",
    "sshpass": "sshpass -p {} ssh host",
    "sshpass joined": "sshpass -p{} ssh host",
    "sshpass in a list": "['sshpass', '-p', '{}', 'ssh']",
    "mysql": "mysql -u root -p{} runs",
    "docker": "docker login -u me -p {} registry",
    "redis option": "redis-cli -h cache -a {} ping",
    "LDAP": "ldapsearch -D cn=x -w {}",
    "openssl": "openssl rsa -passin pass:{}",
    "SSHPASS": "SSHPASS={} sshpass -e ssh host",
    "sentence": "the password is {}",
    "sentence of a user": "the password for admin is {}",
    "two words": "login with password {}",
    "two words, quoted": "login with password `{}`",
    "passwd": "passwd {}",
    "pwd": "pwd is {}",
    "set to": "password set to {}",
    "fat arrow": "password => {}",
    "SQL": "ALTER USER x IDENTIFIED BY '{}'",
    "token in a sentence": "my token is a7{}",
    "token rejected": "Invalid token 'a7{}'",
    "token bare": "token a7{} was rejected",
    "API key in a sentence": "API key a7{} rejected",
    "API key provided": "Incorrect API key provided: a7{}",
    "secret in a sentence": "secret is {}",
    "pass of a dict": "{{'user': 'a', 'pass': '{}'}}",
    "Oracle": "jdbc:oracle:thin:scott/{}@//h:1521/x",
    "JDBC": "jdbc:postgresql://h/db?user=a&password={}",
    "libpq": "host=h user=u password={} dbname=x",
    "mongo": "mongodb+srv://u:{}@c.example.net",
    "npmrc": "//registry.example/:_authToken={}",
    "Docker auth": '{{"auths": {{"r": {{"auth": "{}"}}}}}}',
    "GCP": '{{"type": "service_account", "private_key": "{}"}}',
    "SAS of a connection": "BlobEndpoint=https://x/;SharedAccessSignature=sv=2022&sig={}",
    "private token": "PRIVATE-TOKEN: {}",
    "token header": "Authorization: token {}",
    "kubeconfig": "client-key-data: {}",
}


def tokens(seed: int = 0) -> Iterator[Planted]:
    """Yield credentials that are known by their form."""
    chance = random.Random(seed)
    for kind, (start, letters, length) in _TOKENS.items():
        secret = "a1B2"[: 4 if letters is MIXED else 0] + _random(chance, letters, length)
        secret = secret if letters is not _HEX else f"a7{secret[2:]}"
        yield Planted(kind, start + secret, secret)


def passwords(seed: int = 0) -> Iterator[Planted]:
    """Yield texts that hold a password known by what stands around it."""
    chance = random.Random(1000 + seed)
    for kind, text in _PASSWORDS.items():
        secret = f"Zq{_random(chance, MIXED, 9)}"
        yield Planted(kind, text.format(secret), secret)


_NAMES = {  # texts around a name, and the name
    "user in a path": ("/home/alicesmith/llama/train.py", "alicesmith"),
    "user in a word": ("run-alicesmith-llama2", "alicesmith"),
    "user with a number": ("alicesmith2_checkpoint", "alicesmith"),
    "capital user": ("Alicesmith's run", "licesmith"),
    "project folder": ("cannot open /data/acmeproject/secretmodel/weights.pt", "acmeproject"),
    "path with spaces": ("cannot open '/data/Acme Research Lab/new model/w.pt'", "Research Lab"),
    "path with spaces, bare": ("open /data/AcmeSpaces Lab/model/w.pt failed", "AcmeSpaces"),
    "Windows path": (r"cannot open C:\Users\Bobwindows\train.py", "Bobwindows"),
    "network path": (r"\\fileserverx\teamshare\train.py", "fileserverx"),
    "relative path": ("'../acmerelative/model/train.py'", "acmerelative"),
    "host": ("connect to secrethost17 failed", "secrethost17"),
    "host of an address": ("tcp://gpuserver9:29500", "gpuserver9"),
    "domain": ("resolve trainer.acmedomain.com", "acmedomain"),
    "cluster domain": ("worker-0.acmejob.default.svc.cluster.local", "acmejob"),
    "FQDN": ("login1.acmecluster.uni-example.de", "acmecluster"),
    "IPv4": ("connect 10.27.33.41 refused", "10.27.33.41"),
    "IPv4 and port": ("10.27.33.42:29500", "10.27.33.42"),
    "IPv6": ("connect [2001:db8:4f1a::77ce]:29500", "4f1a"),
    "link-local": ("fe80::a1b2:c3ff:fe44:5566%eth0", "c3ff"),
    "whole IPv6": ("2001:db8:0:1:91ab:62cd:8e3f:7a10", "91ab"),
    "MAC": ("device 0c:42:a1:7e:9b:d3 down", "7e:9b"),
    "MAC with hyphens": ("0c-42-a1-7e-9b-d4", "7e-9b"),
    "InfiniBand GUID": ("0c:42:a1:03:00:7e:9b:d5", "7e:9b"),
    "GPU": ("GPU-5ebe9f43-ac33-4d46-8a28-3a7f5c12d9e0", "3a7f5c12d9e0"),
    "node list": ("srun: gpuacme[001-004,007] failed", "gpuacme"),
    "node list of two": ("nodeacme[1-2],loginacme3", "loginacme3"),
    "mail": ("mail to bob.mailer@acmemail.org", "acmemail"),
    "mail user": ("mail to bob.mailer@acmemail.org", "bob.mailer"),
    "URL": ("https://wiki.acmeurl.example/page", "acmeurl"),
    "bucket": ("s3://acmebucket/model/w.pt", "acmebucket"),
    "home": ("~bobtilde/x/train.py", "bobtilde"),
    "zone of IPv6": ("bind fe80::a1b2:c3ff:fe44:5577%acmeif0 failed", "acmeif0"),
    "mapped IPv4": ("[::ffff:10.27.33.43]:29500", "10.27.33.43"),
    "MAC with dots": ("0c42.a17e.9bd3", "a17e"),
    "node list of numbers": ("acmenode[01-04]", "acmenode"),
    "node list of one": ("acmesingle[07]", "acmesingle"),
    "node list of racks": ("acmerack[1-2]gpu[01-04]", "acmerack"),
    "pod": ("pytorchjob-acmellama-worker-0 not ready", "acmellama"),
    "pod of a deployment": ("acmeserve-7d9f8b6c5d-x2k4q", "acmeserve"),
    "namespace": ("acmeteam/pytorchjob-x-master-0", "acmeteam"),
    "service": ("pytorchjob-acmesvc-master-0.acmens.svc", "acmens"),
    "EC2": ("ip-10-27-33-44", "10-27-33-44"),
    "Windows path, escaped": (r"C:\\Users\\Bobescaped\\train.py", "Bobescaped"),
    "Windows path, slashes": ("C:/Users/Bobslash/train.py", "Bobslash"),
    "file URL": ("file:///home/bobfile/train.py", "bobfile"),
    "ssh user": ("bobssh@login1:/data", "bobssh"),
    "ssh host": ("ssh bob@acmelogin", "acmelogin"),
    "Lustre": ("10.27.33.45@tcp:/fs", "10.27.33.45"),
}


def names() -> list[Planted]:
    """Return texts with names of hosts, users and places, for a run of user alicesmith."""
    return [Planted(kind, text, secret) for kind, (text, secret) in _NAMES.items()]


def texts(seed: int = 0) -> list[Planted]:
    """Return all of them."""
    return [*tokens(seed), *passwords(seed)]


def encodings(secret: str) -> Iterator[bytes]:
    """Yield the bytes by which a secret would be found."""
    yield secret.encode()
    yield base64.b64encode(secret.encode())[:-4]


def _random(chance: random.Random, letters: str, length: int) -> str:
    return "".join(chance.choices(letters, k=length))
